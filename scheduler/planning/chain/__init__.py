"""What is asked of chains alone."""
