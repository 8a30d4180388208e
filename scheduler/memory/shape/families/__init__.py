"""From configs to fields of a shape, family by family."""
