"""Cox's model as a hazard that steps at quantiles of event times, beside R's coxph and glmer.

    CASES["cox"].table(20, rows=(10, 30)).to_csv("cox.csv", float_format="%.17g")
    coxph(Surv(y, event) ~ x, read.csv("cox.csv"), ties = "breslow")
    glmer(d ~ x + k + offset(log(spent)) + (1 | site), long, poisson, nAGQ = 1,
          control = glmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-9, maxfun = 1e6)))

where long has a row for each interval that a row was in, cut at the quantiles of eight intervals. R 4.2.2, survival
3.5.3, lme4 1.1.31.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from support.responses import CASES

from hierfl import UserError, mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.models import MixedEffects
from hierfl.responses.cox import BINS, CoxResponse, pooled, quantile_cuts

DF = CASES["cox"].table(20, rows=(10, 30))
HOW = {"family": "cox", "event": "event", "draws": 0, "population": "ml"}
#: coxph's coefficient of x and its standard error
COXPH = (0.5507054109, 0.06912521808)
#: glmer's intercept, coefficient of x and log hazard ratios, standard errors of the first two, sd and log likelihood
GLMER = [-0.4090228543, 0.8098481642, 0.4525787325, 0.6913677401, 0.6710027023, 0.8543041845, 0.6693351848,
         0.9894240836, 1.3818264667]  # fmt: skip
ERRORS, SD, LOG_LIKELIHOOD = [0.283200653, 0.078935463], 1.021027345, -967.763416203


def test_without_random_effects_it_is_coxs() -> None:
    """The gap is below a tenth of a standard error at 8 intervals, and at 20."""
    for intervals in (8, 20):
        fit = mixed_model(DF, "y ~ x + (1 | site)", prior="fixed", sd_0=1e-6, intervals=str(intervals), **HOW)  # type: ignore[arg-type]
        assert fit.params["x"] == pytest.approx(COXPH[0], abs=0.1 * COXPH[1])
        assert fit.summary().table.standard_error[1] == pytest.approx(COXPH[1], rel=0.01)


def test_with_random_effects_it_is_a_poisson_model_of_intervals() -> None:
    fit = mixed_model(DF, "y ~ x + (1 | site)", nodes=1, intervals="8", **HOW)  # type: ignore[arg-type]
    table = fit.summary().table
    np.testing.assert_allclose(table.estimate.drop(2), GLMER, atol=0.002 * ERRORS[0])
    np.testing.assert_allclose(table.standard_error[:2], ERRORS, rtol=0.02)
    assert table.estimate[2] == pytest.approx(SD, rel=1e-3)
    # A Poisson's of d events in a time has the time's logarithm beside, d times.
    edges = np.array([0.0, *fit.method.response_family.cuts])
    spent = DF.y - edges[np.searchsorted(edges, DF.y) - 1]
    assert fit.log_likelihood == pytest.approx(LOG_LIKELIHOOD - np.log(spent[DF.event == 1]).sum(), abs=1e-4)


def test_sites_sums_give_the_cuts_of_the_table() -> None:
    """To the last digit: what is added up are whole numbers."""
    dictionary = Dictionary({"y": Column("number", least=0), "x": Column("number"), "event": Column("flag")})
    study = StudyFormula("y ~ x + (1 | site)", dictionary, "cox", RowColumns(event="event"))
    tables = [rows for _, rows in DF.groupby("site")]
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables)))
    design = reader.design(reduce(add, (reader.second(rows) for rows in tables)))
    _, pooled = from_formula(DF, "y ~ x + (1 | site)", family="cox", event="event")
    cuts = [MixedEffects(of, intervals="12").response_family.cuts for of in (design, pooled)]  # type: ignore[attr-defined]
    assert cuts[0] == cuts[1]
    inside = np.histogram(DF.y[DF.event == 1], [0.0, *cuts[0], np.inf])[0]
    assert inside.min() > 0.5 * inside.mean()
    # Before anything is known of the times it has as many numbers.
    assert MixedEffects(reader.columns_only(), intervals="12").sizes["steps"] == 11


def test_few_events_of_a_client_are_counted_with_its_next() -> None:
    counts = np.array([[1, 0, 3, 2, 7, 1, 0], [0, 1, 1, 0, 0, 0, 0], [5, 0, 0, 4, 0, 1, 2], [0] * 7])
    wanted = [[0, 0, 6, 0, 8, 0, 0], [0, 2, 0, 0, 0, 0, 0], [5, 0, 0, 7, 0, 0, 0], [0] * 7]
    np.testing.assert_array_equal(pooled(counts, 5), wanted)
    histograms = [
        CoxResponse.histogram(rows.y.to_numpy(), {"event": rows.event}, rows.site) for _, rows in DF.groupby("site")
    ]
    assert min(counts[counts > 0].min() for counts in histograms if counts.sum() >= 5) >= 5
    assert sum(map(sum, histograms)) == DF.event.sum()
    assert sum(counts.sum() < 5 for counts in histograms) == 1  # a site with four in all
    whole = CoxResponse.histogram(DF.y.to_numpy(), {"event": DF.event.to_numpy()}, DF.site.to_numpy())
    np.testing.assert_array_equal(whole, sum(histograms))


def test_quantiles_of_a_histogram() -> None:
    counts = np.zeros(BINS)
    counts[40], counts[42] = 10, 30  # from 1 to 1.41, and from 2 to 2.83
    np.testing.assert_allclose(quantile_cuts(counts, 4), 2 ** np.array([0.5, 1 + 1 / 6, 1 + 1 / 3]), rtol=1e-12)
    assert quantile_cuts(counts, 1) == ()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"intervals": "80"}, "need 400 events, and there are 290: say intervals=58 or fewer"),
        ({"intervals": "0"}, "intervals are one whole number from 1 to 200, such as 20, not '0'"),
        ({"family": "exponential", "cuts": "auto:10"}, "of the family cox: family='cox', intervals='10'"),
    ],
)
def test_what_has_no_cuts_is_refused(how: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        mixed_model(DF, "y ~ x + (1 | site)", **{**HOW, **how})
    assert "\n" not in str(refused.value)
