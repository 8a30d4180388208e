"""What to keep inside one block: a knapsack with ties."""
