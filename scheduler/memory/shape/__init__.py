"""Shapes of models: read from configs, checked, counted."""
