"""A live model seen from outside: its stack, its calls, its random states."""
