"""What is printed: effects with errors and tests, tables of random effects, comparisons, predictions."""
