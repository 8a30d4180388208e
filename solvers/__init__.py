"""The mathematics: problems in, plans out. No torch, no files, no printing."""
