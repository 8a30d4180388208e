"""Models that are no chain: traced, profiled and run as a graph."""
