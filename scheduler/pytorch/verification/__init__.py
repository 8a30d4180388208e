"""A step measured and held to its plan."""
