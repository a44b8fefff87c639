"""Rounds of methods as plain loops, for the benchmark to compare with."""
