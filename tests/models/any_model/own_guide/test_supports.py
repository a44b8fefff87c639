"""A user's guide whose draws or densities its model does not have is refused before a fit, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import COLUMNS

from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model.own_guide.method import OwnGuide


def small(own: Callable, program: Callable) -> None:
    OwnGuide(ColumnDesign.from_columns(COLUMNS), program, own)


def positive(batch: ColumnBatch) -> None:
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    share = pyro.sample("share", dist.Dirichlet(torch.ones(2)))
    with batch.clients():
        rate = pyro.sample("rate", dist.Gamma(2.0, tau))
        with batch.data():
            pyro.sample("y", dist.Poisson(rate * share[..., 0]), obs=batch["y"])


def guide_of_positive(tau: Any = None, rate: Any = None, noise: Any = None, flat: bool = False) -> Callable:
    def made(batch: ColumnBatch) -> None:
        t = pyro.param("t", torch.tensor(3.0))
        pyro.sample("tau", dist.LogNormal(t, 0.1) if tau is None else tau(t))
        corner = dist.transforms.StickBreakingTransform()
        pyro.sample("share", dist.TransformedDistribution(dist.Normal(t.expand(1), 1.0).to_event(1), [corner]))
        if noise is not None:
            pyro.sample("noise", noise(t), infer={"is_auxiliary": True})
        with batch.clients():
            r = pyro.param("r", torch.full((batch.num_clients,) if flat else (batch.num_clients, 1), 3.0))
            pyro.sample("rate", dist.Uniform(1.0, 1.0 + r.exp()) if rate is None else rate(r))

    return made


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (guide_of_positive(tau=lambda t: dist.Normal(t, 0.01)), "site 'tau' by Normal, outside of its support"),
        (guide_of_positive(rate=lambda r: dist.Laplace(r, 0.01)), "site 'rate' by Laplace, outside of its support"),
        (guide_of_positive(tau=lambda t: dist.Delta(-t)), "draws site 'tau', outside of its support"),
        (guide_of_positive(noise=lambda t: dist.Normal(0.0, -t)), "site 'noise' has no finite log density"),
        (guide_of_positive(noise=lambda t: dist.Normal((-t).log(), 1.0)), "site 'noise' has no finite log density"),
        (guide_of_positive(flat=True), r"site 'rate' has shape \(2, 2\) in the guide and \(2, 1\) in the model"),
        (lambda: None, "the guide: TypeError"),
    ],
)  # fmt: skip
def test_a_guides_supports_and_densities_are_compared_before_its_fit(own: Callable, words: str) -> None:
    """Draws that are within a support at first may leave it, as those of a Normal far from 0 do."""
    small(guide_of_positive(), positive)
    with pytest.raises(UserError, match=words) as caught:
        small(own, positive)
    assert "\n" not in str(caught.value)
