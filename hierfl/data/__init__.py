"""Data of clients: arrays, federations and batches, and where they come from."""
