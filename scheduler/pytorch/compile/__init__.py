"""Budgets of `torch.compile`: the joint graph, and what to run again of it."""
