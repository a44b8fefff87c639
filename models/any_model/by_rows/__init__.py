"""Latents of thousands of rows: a client's part of the guide in the form of an arrow."""
