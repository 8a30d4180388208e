"""Options of a block: what its operations are, which sets are worth keeping, what people keep."""
