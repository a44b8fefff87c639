"""Aggregation rules: one file per kind of message."""
