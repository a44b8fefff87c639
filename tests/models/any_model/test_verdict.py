"""What an exploration says of itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_model_fits import SCHOOLS, centred, fitted

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.verdict import Verdict

GOOD = Verdict(points=1000.0, k_hat=0.3, worth=600.0, noise=0.1, clients=8.0, inner=32.0)


@pytest.mark.parametrize(
    ("more", "says"),
    [({"k_hat": 0.69}, "k-hat 0.69, above 0.67"), ({"proposals": 1.2}, "two proposals"), ({"heavy": 2.0}, "2 of 8"),
     ({"centrings": 1.0}, "1 of 8 clients two proposals"), ({"noise": 0.6}, "0.60, above 0.5")],
)  # fmt: skip
def test_each_doubt_is_a_line(more: dict[str, float], says: str) -> None:
    assert GOOD.warnings == []
    (line,) = Verdict(**{**GOOD.__dict__, **more}).warnings
    assert says in line


def test_values_are_read_again_and_overlap_is_called_no_certificate() -> None:
    assert Verdict.read({"posterior.verdict": GOOD.values}) == GOOD
    assert "no certificate" in GOOD.lines()[0]
    assert "nothing was explored" in Verdict().lines()[0]


@pytest.mark.parametrize(
    ("noise", "last", "inner"),
    [(0.05, False, 32), (0.15, False, 64), (5.0, False, 256), (0.005, True, 32), (0.02, True, 128)],
)
def test_clients_draw_more_where_their_estimates_are_noisy(noise: float, last: bool, inner: float) -> None:
    assert GOOD.next_inner(noise, last=last) == inner


def two_modes(batch: ColumnBatch) -> None:
    """The sign of a client's latent is not known."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 3.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u.abs(), 0.3), obs=batch["y"])


@pytest.mark.cpu(5, "a fit")
def test_latents_with_two_modes_are_warned_of() -> None:
    df = pd.DataFrame({"site": [f"s{j}" for j in range(6)], "y": [1.0, 2.0, 0.9, 1.6, 2.2, 1.2]})
    run, _, _ = fitted(two_modes, df, explored_rounds=3, points=256, draws=50)
    assert Verdict.read(run.shared).warnings


@pytest.mark.cpu(4, "a fit")
def test_beyond_the_most_globals_nothing_is_explored() -> None:
    run, _, _ = fitted(centred, SCHOOLS, most_globals=1, draws=50)
    assert "nothing was explored" in Verdict.read(run.shared).lines()[0]
    assert torch.isfinite(run.shared["posterior.draws"]).all()


@pytest.mark.cpu(4, "a fit")
def test_a_proposal_that_is_wrong_itself_is_no_second_opinion() -> None:
    """Counts of 100,000: in the non-centred form a client's latent is no line in the globals, by far."""

    def model(batch: ColumnBatch) -> None:
        m, tau = pyro.sample("m", dist.Normal(0.0, 20.0)), pyro.sample("tau", dist.HalfNormal(1.0))
        with batch.clients():
            u = pyro.sample("u", dist.Normal(m, tau))
            with batch.data():
                pyro.sample("y", dist.Poisson(u.exp()), obs=batch["y"])

    rng = np.random.default_rng(0)
    counts = rng.poisson(1e5 * np.exp(0.3 * rng.normal(size=8)).repeat(10)).astype(float)
    df = pd.DataFrame({"site": np.repeat(list("abcdefgh"), 10), "y": counts})
    found = hierfl.fit_model(model, df, progress=False, worth=100)
    assert found.verdict.centrings == 0
    assert len(found.verdict.lines()) == 1
