"""The command line: each command in a file of its own, and what they share."""
