"""Chains cut into the stages of a pipeline, each with a plan of its own, all for the least time."""
