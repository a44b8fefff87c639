"""The equations: levels, their covariances, the population's numbers and settings."""
