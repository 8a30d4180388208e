"""The exact solver of chains: sets of spans in compiled loops, bounds, frontiers, one budget."""
