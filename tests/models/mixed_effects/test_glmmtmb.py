"""Responses that glmmTMB has, beside what it prints of the same simulated tables, by Laplace's approximation.

    for family, f in (("student-t", "t_family()"), ...):
        CASES[family].table(12, rows=(2, 25)).to_csv(f"{family}.csv", float_format="%.17g")
    glmmTMB(y ~ x + (1 | site), read.csv(...), family = f, ziformula = ~1 of a hurdle,
            control = glmmTMBControl(optCtrl = list(iter.max = 1000, eval.max = 1000, rel.tol = 1e-10)))

glmmTMB 1.1.5, R 4.2.2: fixef(), the standard errors of summary(), VarCorr(), sigma(), family_params(), logLik().
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from support.responses import CASES

from hierfl import UserError, mixed_model


class Printed(NamedTuple):
    """What R prints.

    Attributes:
        beta, errors: of the fixed effects.
        sd: of the random intercept.
        own: the response's own numbers as they are printed here.
        log_likelihood: at the estimates.
    """

    beta: tuple[float, float]
    errors: tuple[float, float]
    sd: float
    own: tuple[float, ...]
    log_likelihood: float


PRINTED = {
    "student-t": Printed(
        (0.3709579948, 0.6651440704), (0.238083105, 0.083178251), 0.6885241281, (0.7530896642, 2.653048), -277.974580303
    ),
    "truncated-poisson": Printed(
        (0.4450990433, 0.7895689555), (0.310042642, 0.076960502), 1.020812003, (), -220.698682302
    ),
    "truncated-negative-binomial": Printed(
        (0.5781837429, 0.8659561287), (0.55923594, 0.17297638), 0.9631289386, (0.231248766,), -382.8495993
    ),
    "hurdle-negative-binomial": Printed(
        (0.7017121447, 0.6852808194), (0.38955967, 0.17437341), 0.5168039363, (0.3604433933, 0.26589597), -383.581723557
    ),
    # Sigma is 1 + dispersion.
    "generalised-poisson": Printed(
        (0.8834138408, 0.7738898163), (0.324437513, 0.073995902), 1.076293827, (1.151618832,), -328.299785742
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", PRINTED)
def test_a_fit_is_glmmtmbs(family: str) -> None:
    case, theirs = CASES[family], PRINTED[family]
    fit = mixed_model(case.table(12, rows=(2, 25)), case.formula, family=family, population="ml", draws=0, nodes=1)
    table, errors = fit.summary().table, np.array(theirs.errors)
    assert (np.abs(table.estimate[:2] - theirs.beta) < 1e-3 * errors).all()
    np.testing.assert_allclose(table.standard_error[:2], errors, rtol=1e-4)
    np.testing.assert_allclose(table.estimate[2:], [theirs.sd, *theirs.own], rtol=1e-4)
    assert fit.log_likelihood == pytest.approx(theirs.log_likelihood, abs=1e-6)


def test_degrees_of_freedom_that_are_known_are_not_learned() -> None:
    """Where they are held at what would be learned, the fit is the same; further out the likelihood is less."""
    case = CASES["student-t"]
    df, how = case.table(12, rows=(2, 25)), {"family": "student-t", "population": "ml", "draws": 0, "nodes": 1}
    learned = mixed_model(df, case.formula, **how)  # type: ignore[arg-type]
    own = learned.summary().table.set_index("effect").estimate
    same, far = (
        mixed_model(df, case.formula, degrees_of_freedom=f"{number:.12g}", **how)  # type: ignore[arg-type]
        for number in (own["df"], 30)
    )
    np.testing.assert_allclose(same.params, own[same.params.index], rtol=1e-5)
    assert "df" not in set(same.summary().table.effect)
    assert same.log_likelihood == pytest.approx(learned.log_likelihood, abs=1e-8)
    assert far.log_likelihood < same.log_likelihood - 1
    assert stats.kstest(learned.residuals("quantile"), "norm").pvalue > 0.01
    r, scale = df.y - far.fitted(), far.summary().table.set_index("effect").estimate["scale"]
    np.testing.assert_allclose(far.residuals("pearson"), r / (scale * np.sqrt(30 / 28)), rtol=1e-10)
    heavy = mixed_model(df, case.formula, degrees_of_freedom="2", **how)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a student-t response has no Pearson residuals here: kind='quantile'"):
        heavy.residuals("pearson")
