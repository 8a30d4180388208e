"""From a live model, a batch and a budget to a training step that fits, in one call."""
