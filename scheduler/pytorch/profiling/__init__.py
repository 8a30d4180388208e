"""The costs of a live model's layers, with their options."""
