"""Hints of where the names of other packages' fitted models are found here."""

from __future__ import annotations

_EFFECTS = "summary().table has every coefficient, with its standard error, interval and p value"
_NUMBERS = "summary().numbers has log_likelihood, aic, bic and the like"

#: name of an attribute -> the way
NAMES_ELSEWHERE = {
    **dict.fromkeys(("bse", "pvalues", "tvalues"), _EFFECTS),
    "coef": "params has the population's coefficients, shrinkage() each client's own (column hierarchical)",
    **dict.fromkeys(("coef_", "fixef", "fe_params"), "params has the coefficients"),
    "conf_int": "confint(level) has the intervals",
    "cov_params": "vcov() has the coefficients' covariance; posterior() has joint draws",
    **dict.fromkeys(("llf", "loglik", "logLik"), _NUMBERS),
    **dict.fromkeys(("emmeans", "marginal_means"), "means(of) has marginal means, contrast(of) their differences"),
    **dict.fromkeys(("wald_test", "t_test", "f_test"), "test(hypothesis) is a Wald test, as test('x = z = 0')"),
    **dict.fromkeys(("random_effects", "coefs_by_client"), "ranef() has each client's effects"),
    "client_module": "it has no network; predict(rows) is of a client, and ranef() has its effects",
    "resid": "residuals() has them",
    "fittedvalues": "fitted() has them",
    **dict.fromkeys(("plot", "plots"), "ranef(), shrinkage() and summary().table have the numbers that figures show"),
}
