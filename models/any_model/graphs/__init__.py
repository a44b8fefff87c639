"""A model's text as a graph of tensor operations, which runs without its text."""
