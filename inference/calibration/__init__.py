"""Calibration after the last round: a temperature and a conformal threshold for all clients, by sums over them."""
