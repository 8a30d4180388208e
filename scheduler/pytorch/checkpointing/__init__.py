"""A plan applied to a model: blocks wrapped, segments run and run again."""
