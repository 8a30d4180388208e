"""The memory arithmetic of training: what a run takes before anything is checkpointed."""
