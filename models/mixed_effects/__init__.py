"""Mixed-effects models of tables, each file on what those before it say.

``families`` the responses, ``model`` the joint model, ``newton`` each client's posterior mode and curvature,
``quadrature`` the marginal likelihood, ``summary`` estimates and standard errors, ``shrinkage`` the clients'
coefficients beside the population's, ``method`` how all of it is fitted.
"""
