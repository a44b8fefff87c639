"""Where to find what other packages' fitted models have under these names."""

from __future__ import annotations

_EFFECTS = "summary().table has every coefficient, with its standard error, interval and p value"
_NUMBERS = "summary().numbers has log_likelihood, aic, bic and the like"

#: name of an attribute -> the way
ELSEWHERE = {
    **dict.fromkeys(
        ("coef", "coef_", "params", "fixef", "fe_params", "bse", "pvalues", "conf_int", "tvalues"), _EFFECTS
    ),
    **dict.fromkeys(("vcov", "cov_params"), f"{_EFFECTS}; posterior() has joint draws"),
    **dict.fromkeys(("aic", "bic", "llf", "loglik", "nobs"), _NUMBERS),
    **dict.fromkeys(("random_effects", "coefs_by_client"), "ranef() has each client's effects"),
    **dict.fromkeys(("residuals", "resid"), "they are the response less predict(df)['mean']"),
    **dict.fromkeys(("fittedvalues", "fitted"), "predict(df)['mean'] has them"),
    **dict.fromkeys(("plot", "plots"), "ranef(), shrinkage() and summary().table have the numbers that figures show"),
    "anova": "compare(other) tests two nested models",
}
