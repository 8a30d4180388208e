"""A block run on paper, tensor by tensor, where a formula is not enough."""
