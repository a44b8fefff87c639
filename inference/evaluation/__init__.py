"""Predictions and metrics of a fitted method, from its model and guide alone."""
