"""A user's own guide of a plain model, fitted by stochastic gradients of the bound that clients' sums give."""
