"""From costs to plans: requests read, solvers called, what they find replayed and compared."""
