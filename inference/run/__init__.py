"""Fitting: rounds, checkpoints, and what is left of them."""
