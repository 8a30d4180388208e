"""What several GPUs that share a block do of it, and send each other."""
