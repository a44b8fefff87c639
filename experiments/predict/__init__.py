"""Predictions of a finished run for new rows."""
