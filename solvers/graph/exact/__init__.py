"""Exact solvers of graphs."""
