"""Graphs whose parts follow each other like a chain's layers."""
