"""Solvers of chains."""
