"""Graphs of a model's log joint: what they say is what the model's text says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from pyro.distributions import Normal, Poisson
from support.any_model_fits import chunk_of, counts, fitted, table_of_counts
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model import blocks, in_parts
from hierfl.models.any_model.evaluating import Clients
from hierfl.models.any_model.graphs.graphs import Graphs
from hierfl.models.any_model.heights import heights, latents_at
from hierfl.models.any_model.in_parts import log_joints, moments_of
from hierfl.models.any_model.moments import moments
from hierfl.models.any_model.names import DRAWS
from hierfl.models.any_model.sites import read_sites

F64 = torch.float64
#: draws, clients, rows
SIZES = 6, 7, 5


def exposed(batch: ColumnBatch, change: Callable[[Tensor], Tensor] = lambda eta: eta) -> None:
    """Counts of a site under an exposure, which may be none."""
    beta = pyro.sample("beta", Normal(0.0, 2.0))
    tau = pyro.sample("tau", pyro.distributions.HalfNormal(1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(beta, tau))
        with pyro.plate("data", batch.width, dim=-1):
            rate = change(u + batch["log_exposure"]).exp()
            pyro.sample("y", Poisson(rate), obs=batch["y"])


class Straight(torch.autograd.Function):
    """Rounded, with the slope of what is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round(decimals=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Tensor:  # type: ignore[override]
        return by


def in_place(eta: Tensor) -> Tensor:
    made = eta + 0
    return made.add_(1)


def plate(model: Any) -> tuple[Clients, Tensor, Tensor]:
    """Clients with some rows of padding, and draws of their latents."""
    many, count, rows = SIZES
    generator = torch.Generator().manual_seed(2)
    y = torch.randint(0, 5, (count, rows), generator=generator).double()
    log_exposure = torch.randn(count, rows, generator=generator, dtype=F64)
    log_exposure[1, 0], y[1, 0] = -torch.inf, 0.0  # nobody was there, and nothing was counted
    mask = torch.ones(count, rows, dtype=torch.bool)
    mask[3, 2:] = False
    design = ColumnDesign.from_columns(["log_exposure", "y"])
    columns = torch.stack([log_exposure, y], 1)
    sites = read_sites(model, design.template(y))
    centring = torch.rand(count, 1, generator=generator, dtype=F64)
    drawn = torch.randn(many, count, 3, generator=generator, dtype=F64)
    return Clients(model, sites, design, columns, mask, centring, Graphs()), drawn[..., :2], drawn[..., 2:]


def test_a_graph_has_values_and_derivatives_of_the_text() -> None:
    clients, x, v = plate(exposed)
    by_graph = replace(clients, at_once=4)  # six draws: the second part is filled up
    torch.testing.assert_close(by_graph.log_joint(x, v), clients.log_joint(x, v), rtol=1e-13, atol=1e-13)
    clients, by_graph = clients.some(2, 7), replace(clients, at_once=6).some(2, 7)
    ours, text = moments(by_graph.log_joint, x[:, 2:], v[:, 2:]), moments(clients.log_joint, x[:, 2:], v[:, 2:])
    for name in ("height", "gradient", "hessian", "spread"):
        torch.testing.assert_close(getattr(ours, name), getattr(text, name), rtol=1e-11, atol=1e-11)
    assert clients.graphs is not None
    graphs = list(clients.graphs.cache.values())
    assert len(graphs) == 2
    assert all(graphs)
    operations = [str(node.target) for halves in graphs for node in halves.after.graph.nodes]  # type: ignore[union-attr]
    # No logarithm of a rate that was exponentiated, and nothing of the data alone.
    assert not [name for name in operations if name.startswith(("aten.xlogy", "aten.lgamma"))]


def test_a_rate_beyond_all_numbers_keeps_its_logarithm() -> None:
    clients, x, v = plate(exposed)
    far = v.clone()
    far[0] -= 2000.0  # rates are 0, of which the text takes the logarithm
    at = clients.some(2, 7)
    log_joint = replace(at, at_once=6).log_joint(x[:, 2:], far[:, 2:])
    assert at.log_joint(x[:, 2:], far[:, 2:])[0].isinf().all()
    assert log_joint.isfinite().all()


@pytest.mark.parametrize("change", [in_place, Straight.apply], ids=["in place", "a slope of its own"])
def test_a_text_that_no_graph_can_say_runs_as_it_is_written(change: Callable[[Tensor], Tensor]) -> None:
    clients, x, v = plate(lambda batch: exposed(batch, change))
    clients = clients.some(2, 7)
    x, v = x[:, 2:], v[:, 2:]
    ours, text = moments(replace(clients, at_once=6).log_joint, x, v), moments(clients.log_joint, x, v)
    assert clients.graphs is not None
    assert list(clients.graphs.cache.values()) == [None]
    torch.testing.assert_close(ours.gradient, text.gradient, rtol=0, atol=0)


def test_clients_in_parts_are_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, x, v = plate(exposed)
    clients, x, v = clients.some(2, 7), x[:, 2:], v[:, 2:]
    whole, height = moments(clients.log_joint, x, v), clients.log_joint(x, v)
    for cells, many in ((140, 1), (140, 100), (400, 1), (1, 1)):  # two clients at a time, all, one
        monkeypatch.setattr(in_parts, "CELLS", cells)
        monkeypatch.setattr(in_parts, "MIN_PARTS_FOR_GRAPH", many)
        torch.testing.assert_close(log_joints(clients, x, v), height, rtol=1e-12, atol=1e-12)
        derivatives = moments_of(clients, x, v)
        for name in ("height", "gradient", "hessian", "spread"):
            torch.testing.assert_close(getattr(derivatives, name), getattr(whole, name))


@pytest.mark.cpu(4, "a climb")
def test_blocks_are_the_plate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are of each client by itself, and the same in blocks of any size."""
    run, method, fed = fitted(counts, table_of_counts(7, 5), reweigh=False)
    chunk = chunk_of(run, method, fed)
    points = chunk.shared[DRAWS][:9]

    def evaluated() -> tuple[Tensor, Tensor]:
        return heights(method, chunk, points, 4, "test").height, latents_at(method, chunk, points, 4, "test")

    whole = evaluated()
    monkeypatch.setattr(in_parts, "CELLS", 250)
    monkeypatch.setattr(blocks, "POINTS", 3)
    for many in (1, 10_000):  # by graphs, and by the text
        monkeypatch.setattr(blocks, "MIN_EVALUATIONS_FOR_GRAPH", many)
        for ours, theirs in zip(evaluated(), whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert any(method.graphs.cache.values())
