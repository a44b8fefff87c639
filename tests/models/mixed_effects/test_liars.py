"""Mixed models with one site of ten that lies: it is named, and with a robust rule it is left out."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from support.liars import LIAR, LIES, coefficient, invented, mixed_run, names_of, spread, table, walking

from hierfl import mixed_model
from hierfl.inference import Run
from hierfl.inference.server.robust.watch import Watch

FAMILIES = ("gaussian", "binomial")


@functools.cache
def honest(family: str) -> Run:
    return mixed_run(table(0, family), family, "none", None)


@functools.cache
def without(family: str) -> Run:
    """Of the nine others."""
    df = table(0, family)
    return mixed_run(df[df.site != f"s{LIAR:02d}"], family, "none", None)


@pytest.mark.cpu(5, "three fits of a mixed model")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lie", ["x -10", "x 1e5", "n_j and tau x 1e9", "sign"])
def test_a_gross_liar_costs_its_own_site_alone(family: str, lie: str) -> None:
    """It is named, and estimates are those of the nine others: within half a standard error of all ten."""
    run = mixed_run(table(0, family), family, "trimmed:0.1", LIES[lie]())
    assert names_of(run) == str(LIAR)
    value, error = coefficient(run)
    assert value == pytest.approx(coefficient(without(family))[0], abs=1e-3 * error)
    assert abs(value - coefficient(honest(family))[0]) < 0.5 * error


@pytest.mark.parametrize("rule", ["none", "median"])
def test_invented_rows_are_named_and_printed_with_and_without(rule: str) -> None:
    """Sixty plausible rows of which x does the opposite, and many more."""
    for rows in (60, 3_000):
        run = mixed_run(invented(table(0, "gaussian"), rows, "gaussian", 0), "gaussian", rule, None)
        assert names_of(run) == str(LIAR)
        (line,) = run.warnings
        assert "s03 stands out by its own estimate" in line
        assert " with it and 0.5" in line
        value, error = coefficient(run)
        truth = coefficient(honest("gaussian"))[0]
        assert (abs(value - truth) < 0.5 * error) == (rule != "none")


def is_without(run: Run, family: str, words: str) -> None:
    """The liar alone is named, by these words, and estimates are those of the nine others."""
    assert names_of(run) == str(LIAR)
    assert words in run.warnings[0]
    value, error = coefficient(run)
    assert value == pytest.approx(coefficient(without(family))[0], abs=1e-3 * error)
    assert error < 1.3 * coefficient(honest(family))[1]


@pytest.mark.parametrize(
    ("family", "size"), [("gaussian", 0.5), ("gaussian", 1e4), ("gaussian", -0.5), ("binomial", 3.0)]
)
def test_who_answers_otherwise_in_each_round_is_left_out(family: str, size: float) -> None:
    """To and fro, and step by step: a search with it would not arrive, and estimates were never near."""
    run = mixed_run(table(0, family), family, "trimmed:0.1", walking(size, family))
    is_without(run, family, "answers that contradict each other")
    assert float(run.shared["effects.to_go"]) < 1e-3


@pytest.mark.parametrize("sd", [10.0, 1e4])
def test_rows_of_another_spread_are_left_out(sd: float) -> None:
    """Their slope is in line; standard errors of all would be 4 and 3,500 times as large."""
    is_without(
        mixed_run(spread(table(0, "gaussian"), sd), "gaussian", "median", None), "gaussian", "spread of its rows"
    )


def test_a_response_that_is_shifted_is_left_out() -> None:
    """The variance of the intercepts takes it in, and nobody's estimate would be far."""
    df = table(0, "gaussian")
    df.loc[df.site == f"s{LIAR:02d}", "y"] += 1e3
    is_without(mixed_run(df, "gaussian", "krum:1", None), "gaussian", "its own effects")


def test_honest_sites_may_differ_in_spread_by_a_factor_of_two() -> None:
    """None is named, and all count in full."""
    df = table(1, "gaussian")
    for j, sd in enumerate(np.linspace(0.0, 1.73, 10)):  # with a variance of one that is 1 to 2
        df = spread(df, sd, f"s{j:02d}")
    plain, robust = (mixed_run(df, "gaussian", rule, None) for rule in ("none", "median"))
    assert names_of(plain) == names_of(robust) == ""
    assert np.allclose(coefficient(plain), coefficient(robust), rtol=1e-9)


def test_a_resumed_search_knows_who_was_left_out(tmp_path: Path) -> None:
    how = {"folder": tmp_path}
    mixed_run(table(0, "gaussian"), "gaussian", "trimmed:0.1", walking(2.0), rounds=3, **how)
    rest = mixed_run(table(0, "gaussian"), "gaussian", "trimmed:0.1", walking(2.0), resume=True, **how)
    is_without(rest, "gaussian", "answers that contradict each other (round 2)")


def test_without_a_site_is_the_fit_without_it() -> None:
    """Given the variances: of a gaussian model the estimates differ by what they do."""
    run = honest("gaussian")
    assert run.watched is not None
    table_of = run.watched.estimates
    row = table_of[(table_of.client == f"s{LIAR:02d}") & (table_of.estimate == "x")].iloc[0]
    assert row["with"] == pytest.approx(coefficient(run)[0], rel=1e-9)
    assert row["without"] == pytest.approx(coefficient(without("gaussian"))[0], abs=0.1 * row["se"])
    assert row["se"] == pytest.approx(coefficient(run)[1], rel=1e-6)
    effects = run.fitted.method.population_summary(run.fitted)[0].set_index("effect")
    constant = table_of[(table_of.client == f"s{LIAR:02d}") & (table_of.estimate == "Intercept")].iloc[0]
    assert constant["with"] == pytest.approx(effects.estimate["Intercept"], rel=1e-9)


@pytest.mark.parametrize("how", [{}, {"rows": (10, 1000)}, {"slopes": 0.3}, {"outlies": 3.0}], ids=str)
@pytest.mark.parametrize("sites", [4, 10])
def test_honest_sites_are_not_named(how: dict, sites: int) -> None:
    """Five federations each; docs/false-messages.md has the rate over many."""
    runs = [mixed_run(table(seed, "gaussian", sites, **how), "gaussian", "none", None) for seed in range(5)]
    assert sum(bool(names_of(run)) for run in runs) <= 1


def test_honest_sites_count_in_full() -> None:
    """With a robust rule estimates are the same."""
    run = mixed_run(table(0, "gaussian"), "gaussian", "krum:1", None)
    assert np.allclose(coefficient(run), coefficient(honest("gaussian")), rtol=1e-9)


@pytest.mark.cpu(3, "four fits of a mixed model")
def test_judged_are_the_first_climb_and_the_last_in_a_resumed_search_too(tmp_path: Path) -> None:
    """With a robust rule every round is; what a checkpoint says of a search that goes on is not kept."""
    whole, every = (mixed_run(table(0, "binomial"), "binomial", rule, None) for rule in ("none", "median"))
    mixed_run(table(0, "binomial"), "binomial", "none", None, rounds=3, folder=tmp_path)
    rest = mixed_run(table(0, "binomial"), "binomial", "none", None, folder=tmp_path, resume=True)
    rounds = [sorted(set(run.watched.influence["round"])) for run in (whole, every, rest) if run.watched]
    assert rounds[0] == [1, max(rounds[1])]
    assert len(rounds[1]) > 4
    assert rounds[2] == rounds[0]
    assert rest.watched is not None
    assert whole.watched is not None
    assert rest.watched.estimates.equals(whole.watched.estimates)


def test_what_a_checkpoint_says_is_provisional() -> None:
    """In the midst of a search: rounds of a fit with checkpoints are those of one without."""
    keep = Watch.after_round

    def kept(watch: Watch, *args: Any) -> Any:
        result = keep(watch, *args)
        again = Watch(watch.exchange)
        again.restore(watch.tensors(), len(watch.measured))
        assert again.tensors().keys() == watch.tensors().keys()
        return result

    with mock.patch.object(Watch, "after_round", kept):
        watched = mixed_run(table(0, "gaussian"), "gaussian", "none", None).watched
    assert watched is not None
    assert honest("gaussian").watched is not None
    assert watched.influence.equals(honest("gaussian").watched.influence)


def test_clients_of_one_row_have_no_spread(caplog: pytest.LogCaptureFixture) -> None:
    """About its own estimate a single row has nothing but rounding left, whose logarithm is no measure."""
    y, se = [0.5, 0.52, 0.48, 0.5, 0.51], [0.2, 0.25, 0.2, 0.3, 0.2]
    studies = pd.DataFrame({"study": list("abcde"), "y": y, "se": se})
    mixed_model(studies, "y ~ 1 + (1 | study)", known_se="se", draws=0)
    assert not caplog.records


def test_single_counts_do_not_stand_out_by_their_spread(caplog: pytest.LogCaptureFixture) -> None:
    """Overdispersion by an effect of each row: the largest of sixty counts is no lie."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"row": [f"r{k}" for k in range(60)], "x": rng.normal(size=60)})
    df["y"] = rng.poisson(np.exp(0.5 + 0.3 * df.x + rng.normal(0, 0.6, 60)))
    df.loc[7, "y"] = 15
    mixed_model(df, "y ~ x + (1 | row)", family="poisson", draws=0, population="ml")
    assert not [line for line in caplog.messages if "spread of its rows" in line]


def test_a_likelihood_that_bends_upwards_has_no_effects_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Eight counts, most of them zero: Newton's own estimate of such a site is no maximum, and has no error."""
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"site": np.repeat([f"s{k:02d}" for k in range(12)], 8), "x": rng.normal(size=96)})
    eta = 0.5 + 0.5 * df.x + np.repeat(rng.normal(0, 0.5, 12), 8)
    df["y"] = np.where(rng.random(96) < 0.4, 0, rng.poisson(np.exp(eta)))
    mixed_model(df, "y ~ x + (1 | site)", family="zero-inflated-poisson", draws=0, nodes=1, population="ml")
    assert not [line for line in caplog.messages if "stands out" in line]
