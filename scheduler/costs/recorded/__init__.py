"""What torch itself records of a run, where costs are wanted: traces, and snapshots of memory."""
