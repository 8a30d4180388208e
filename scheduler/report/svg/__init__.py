"""Pictures in SVG, drawn from numbers."""
