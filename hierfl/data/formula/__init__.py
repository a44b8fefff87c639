"""Mixed-effects formulas."""
