"""What clients compute: log marginal likelihoods of their rows, and draws of their effects."""
