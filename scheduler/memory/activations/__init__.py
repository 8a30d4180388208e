"""What a block keeps for its backward, by formula."""
