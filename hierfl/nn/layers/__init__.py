"""Layers under a client dimension."""
