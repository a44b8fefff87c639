"""What personalised federated learning is compared with, one method a file, as limits of one model::

    w_j | w ~ N(w, rho_j^2 I),    y_ij ~ p(y | f(x_ij; w_j))

rho -> 0 is one model for all, rho -> inf every client alone. Where w_j is all of a network, a penalty
(lambda / 2) |w_j - w|^2 beside a *mean* loss is the prior with rho_j^2 = 1 / (lambda n_j). With these and a flat p(w)
the exact M-step is the mean weighted by n_j. A plain mean goes with one rho^2 = 1 / lambda for all and likelihoods
raised to 1 / n_j, since then every client's mean loss counts the same.

Files with a leading underscore hold what several methods share.
"""
