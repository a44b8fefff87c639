"""The guide of more globals than a full covariance can have: a diagonal and a part of low rank."""
