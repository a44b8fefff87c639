"""The gallery's models, as plain Pyro: what a client adds to the log joint depends on no other client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyro
import pytest
import torch
from support.gallery import NAMES, Batch, enumerated, latents, load, log_joint, log_prior

COUPLED = {"spatial"}
#: models with enumerated latents: Pyro's own handler of them does not run under vmap
SUMMED = {"gaussian_mixture", "hidden_markov", "topics"}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield
    torch.set_default_dtype(before)


def small(name: str) -> tuple[Any, pd.DataFrame, str, list[str]]:
    """A model, and at most four rows of each of three of its clients."""
    module = load(name)
    frame = module.data(0)
    frame = frame.astype({c: "category" for c in frame if not pd.api.types.is_numeric_dtype(frame[c])})
    names = sorted(frame[module.GROUP].unique())[:3]
    frame = frame[frame[module.GROUP].isin(names)].groupby(module.GROUP, observed=True).head(4)
    return module.model, frame, module.GROUP, names


def parts(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The log joint of three clients less log p(globals), and the sum of what single clients add to log p(globals)."""
    model, frame, group, names = small(name)
    batch = Batch(frame, group, names)
    shared, own = latents(model, batch)
    prior, sums = log_prior(model, batch, shared), enumerated(model, batch)
    single = [
        log_joint(model, Batch(frame, group, [client]), {**shared, **of_one(own, j)}, sums) - prior
        for j, client in enumerate(names)
    ]
    return log_joint(model, batch, {**shared, **own}, sums) - prior, torch.stack(single).sum()


def of_one(own: dict[str, torch.Tensor], j: int) -> dict[str, torch.Tensor]:
    """Latents of client j, with its dimension kept."""
    return {name: value[j : j + 1] for name, value in own.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_log_joint_is_a_sum_over_clients(name: str) -> None:
    joint, single = parts(name)
    assert joint.isfinite()
    if name in COUPLED:
        assert (joint - single).abs() > 1e-4
    else:
        torch.testing.assert_close(joint, single, rtol=1e-10, atol=1e-10)


def test_eight_schools_are_the_same_model_in_both_texts() -> None:
    """p(theta | mu, tau) = p(eta) / tau, with theta = mu + tau eta, for each of three schools."""
    centred, frame, group, names = small("eight_schools")
    batch = Batch(frame, group, names)
    shared, own = latents(centred, batch)
    eta = (own["theta"] - shared["mu"]) / shared["tau"]
    written = log_joint(load("eight_schools_noncentred").model, batch, {**shared, "eta": eta}, False)
    expected = log_joint(centred, batch, {**shared, **own}, False) + 3 * shared["tau"].log()
    torch.testing.assert_close(written, expected, rtol=1e-12, atol=1e-12)


class OneClient(Batch):
    """The columns of one client, which ``torch.func.vmap`` gives; all else is another batch's."""

    def __init__(self, batch: Batch, columns: dict[str, torch.Tensor]) -> None:
        self.width, self.num_clients, self.categories, self.columns = batch.width, 1, batch.categories, columns

    def __getitem__(self, column: str) -> torch.Tensor:
        return self.columns[column]

    def client(self, column: str) -> torch.Tensor:
        return self.columns[column][:, :1]


@pytest.mark.parametrize("name", sorted(set(NAMES) - COUPLED - SUMMED))
def test_the_text_is_plain_enough_for_vmap(name: str) -> None:
    """A client's log joint, and its gradient in the global latents, are the same where clients are mapped over."""
    model, frame, group, names = small(name)
    batch = Batch(frame, group, names)
    shared, own = latents(model, batch)
    columns = {column: batch[column][:, None] for column in frame if column != group}

    def term(columns: dict[str, torch.Tensor], own: dict[str, torch.Tensor], shared: dict[str, torch.Tensor]) -> Any:
        return log_joint(model, OneClient(batch, columns), {**shared, **own}, False)

    with pyro.validation_enabled(False):
        mapped = torch.func.vmap(term, (0, 0, None))(columns, {k: v[:, None] for k, v in own.items()}, shared)
        slope = torch.func.vmap(torch.func.grad(term, 2), (0, 0, None))
        slopes = slope(columns, {k: v[:, None] for k, v in own.items()}, shared)
    for j, client in enumerate(names):
        free = {k: v.clone().requires_grad_() for k, v in shared.items()}
        alone = log_joint(model, Batch(frame, group, [client]), {**free, **of_one(own, j)}, False)
        torch.testing.assert_close(mapped[j], alone.detach())
        for k, gradient in zip(free, torch.autograd.grad(alone, list(free.values())), strict=True):
            torch.testing.assert_close(slopes[k][j], gradient)
