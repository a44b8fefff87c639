"""Laplace's approximation of linear heads: modes by Newton's method, curvature as the posterior's precision."""
