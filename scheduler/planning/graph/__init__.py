"""What is asked of graphs alone."""
