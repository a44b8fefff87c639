"""Readers of files that come from elsewhere."""
