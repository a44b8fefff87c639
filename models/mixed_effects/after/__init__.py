"""What is asked after a fit: tests, marginal means, residuals, shares of variance, influence.

All but residuals and simulations come from what the fit has kept of its clients' sums. ``coefficients`` is what the
others stand on; ``answers`` what a fitted model is asked.
"""
