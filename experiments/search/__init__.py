"""Settings chosen on validation data, and ablations of the prior."""
