"""What fits: peaks of a step, the largest batch and sequence, the verdict in words."""
