"""From a call to a graph of layers."""
