"""One file for each framework that a plan can be exported to."""
