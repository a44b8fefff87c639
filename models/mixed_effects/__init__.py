"""Mixed-effects models of tables, each file on what those before it say.

``families`` the responses, ``covariance`` the random effects' L, ``model`` the joint model; ``taylor`` and
``cross_products`` the likelihood of a gaussian response from sums over rows, ``modes`` and ``quadrature`` that of
others; ``prior_text``, ``priors`` and ``surface`` what is made of it, ``climb`` and ``explore`` how that is searched,
``exchange`` the rounds; ``posterior`` the clients' effects, ``summary`` estimates and tests, ``shrinkage`` clients
beside the population, ``method`` all of it; ``mixed_model`` one call for it, with ``predictions`` and ``comparing``.
"""
