"""Attention, on paper: heads, positions, scores."""
