"""Mixtures of experts, on paper."""
