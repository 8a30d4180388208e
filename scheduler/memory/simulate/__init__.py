"""A block run on paper, tensor by tensor: what it keeps, and what it needs meanwhile."""
