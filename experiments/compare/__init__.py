"""Runs against runs: variants, gains paired by seed and client, leave-one-out."""
