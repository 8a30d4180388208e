"""Schedules of graphs found fast, without a proof."""
