"""Integer programs, and the solver that is called on them."""
