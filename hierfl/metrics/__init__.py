"""How good predictions are, and how two fits compare."""
