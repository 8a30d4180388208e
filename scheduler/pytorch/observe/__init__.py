"""What a forward or backward really does: time, storages, peaks."""
