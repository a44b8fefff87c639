"""What a model of a user's own is asked before its first round: padding, chunks, weights, supports, random numbers."""
