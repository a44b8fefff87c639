"""Skewed and heavy- or light-tailed marginals of the guide of the globals."""
