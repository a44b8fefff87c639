"""Simulation-based calibration of a plain model: data from its own prior, a fit of each, ranks of what was drawn."""
