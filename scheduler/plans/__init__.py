"""Plans: what is in them, their words, rows, pictures and files."""
