"""Steps with noise: single examples' gradients, their bound, the noise, and the plain steps where there is none."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from support.federations import blobs
from support.methods import chunk_of
from torch import Tensor

from hierfl import Batch, Federation
from hierfl.inference import SVI, Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import constant_features
from hierfl.inference.local.block import Block
from hierfl.inference.local.gradient_transforms import Clipped, ControlVariate
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.inference.noise import Mechanism, Part, Plan, Privacy
from hierfl.inference.noise.examples import clipped_sums, content_keys
from hierfl.inference.noise.private_svi import PrivateSVI
from hierfl.inference.objective.elbo import elbo
from hierfl.models import FedAvg, FedPer, FedProx, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.frozen_features import FrozenFeatures

MODELS = [(FedAvg, ["w", "base"]), (PFedVEM, ["mu", "pi"]), (PFedVEM, ["mu", "base"]), (FedProx, ["w", "base"])]


def private(chunk: ClientChunk, multiplier: float, clip: float = math.inf, **how: Any) -> ClientChunk:
    """With a plan of one part, "steps"."""
    plan = Plan("site", 1e-5, {"steps": Part(Mechanism("steps", 1.0, 1), multiplier)})
    return dataclasses.replace(chunk, privacy=Privacy(plan, clip, **how))


def private_svi(step: SVI, steps: int, rows: int, rate: float = 1.0, **how: Any) -> PrivateSVI:
    return PrivateSVI(step, lambda number: steps, "steps", rate, rows, **how)


def sums(chunk: ClientChunk, names: list[str], chosen: Tensor, clip: float, rows: int = 10) -> Tensor:
    """Of the chosen examples' gradients, (S, entries)."""
    names = [k for name in names for k in chunk.method.expand(name, chunk.view)]
    chunk = chunk.own(names)
    frozen = FrozenFeatures(frozenset(names), partial(constant_features, chunk))
    at = {k: chunk.values[k] for k in names}
    with pyro.validation_enabled(False), torch.enable_grad():
        return clipped_sums(chunk, chosen, at, chunk.view, chunk.noise(0, 3).at(2), frozen, rows, clip)


def one_by_one(chunk: ClientChunk, names: list[str], row: int, index: int, rows: int = 10) -> Tensor:
    """The gradient of a client's ELBO, data alone, as if it had one example, (entries,)."""
    names = [k for name in names for k in chunk.method.expand(name, chunk.view)]
    alone = chunk.own(names).part(row, row + 1)
    at = {k: alone.values[k].clone().requires_grad_() for k in names}
    x, y = chunk.federation.examples(chunk.federation.train[chunk.clients[row]][index][None, None])
    batch = Batch(x, y, None, torch.full((1,), float(rows), dtype=x.dtype))
    with torch.enable_grad():
        value = elbo(chunk.method, batch, {**alone.view, **at}, alone.noise(0, 3).at(2), terms="data")
        gradients = torch.autograd.grad(value.sum(), list(at.values()))
    return torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize(("cls", "names"), MODELS, ids=lambda v: getattr(v, "__name__", None) or "-".join(v))
def test_gradients_are_those_of_single_examples_and_clipped_one_by_one(
    cls: type[Method], names: list[str], small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever examples are computed together."""
    chunk = chunk_of(cls(net), small)
    width, clip = max(chunk.sizes), 0.7
    chosen = torch.zeros((len(chunk.clients), width), dtype=torch.bool)
    for row, index in [(0, 0), (0, 22), (1, 3), (2, 13), (6, 1)]:
        chosen[row, index] = True
    alone = {(r, p): one_by_one(chunk, names, r, p) for r, p in chosen.nonzero().tolist()}
    assert max(float(g.norm()) for g in alone.values()) > clip
    for bound in (math.inf, clip):
        expected = torch.zeros_like(sums(chunk, names, chosen, bound))
        for (row, _), gradient in alone.items():
            expected[row] += gradient * min(1.0, bound / float(gradient.norm()))
        torch.testing.assert_close(sums(chunk, names, chosen, bound), expected, rtol=2e-6, atol=1e-9)
        monkeypatch.setattr("hierfl.inference.noise.examples.NUMBERS_AT_ONCE", {"cpu": 1})
        torch.testing.assert_close(sums(chunk, names, chosen, bound), expected, rtol=2e-6, atol=1e-9)


def test_one_row_more_moves_a_sum_by_no_more_than_the_bound(small: Federation, net: Architecture) -> None:
    """A row a million times as far out as others; and one that is not finite moves nothing."""
    clip = 0.5
    for far in (1.0, 1e6, math.inf):
        x = small.x.clone()
        x[small.train[0][-1]] *= far
        with_row = dataclasses.replace(small, x=x)
        without = dataclasses.replace(with_row, train=[small.train[0][:-1], *list(small.train)[1:]])
        totals = []
        for federation in (with_row, without):
            chunk = chunk_of(FedAvg(net), federation)
            chosen = torch.arange(max(chunk.sizes)) < torch.tensor(chunk.sizes)[:, None]
            totals.append(sums(chunk, ["w", "base"], chosen, clip))
        gap = (totals[0] - totals[1]).norm(dim=1)
        assert float(gap[0]) <= clip + 1e-9
        assert (float(gap[0]) > 0) == (far < math.inf)
        assert float(gap[1:].max()) < 1e-9


@pytest.mark.parametrize("gone", [0, 11, -1])
def test_whether_a_row_is_there_changes_no_other_rows_draws(gone: int) -> None:
    """Dropout: two rows' sums differ by the gradient of the row that has gone, wherever it was."""
    federation, clip = blobs([24, 3]), 0.5
    chunk = chunk_of(FedAvg(architecture("mlp:16,dropout=0.5", federation)), federation)
    rows = list(federation.train[0])
    del rows[gone]
    left = dataclasses.replace(federation, train=[torch.as_tensor(rows), *list(federation.train)[1:]])
    other = chunk_of(chunk.method, left)
    totals = [
        sums(c, ["w", "base"], torch.arange(max(c.sizes)) < torch.tensor(c.sizes)[:, None], clip)[c.clients.index(0)]
        for c in (chunk, other)
    ]
    only = torch.zeros((2, 24), dtype=torch.bool)
    only[chunk.clients.index(0), gone] = True
    alone = sums(chunk, ["w", "base"], only, clip)[chunk.clients.index(0)]
    torch.testing.assert_close(totals[0] - totals[1], alone, rtol=1e-5, atol=1e-7)
    assert 0 < float(alone.norm()) <= clip


def test_rows_draw_apart_at_every_step() -> None:
    """Rows that differ in one value, by little or much; in any plate of them."""
    x = torch.zeros(200, 3)
    x[:, 1] = torch.arange(200) / 8
    y = torch.zeros(200, 1, dtype=torch.long)
    keys = content_keys(x, y)
    assert len(set(keys.tolist())) == len({k & 0xFFFFFFFF for k in keys.tolist()}) == 200
    assert torch.equal(content_keys(x[7:9], y[7:9]), keys[7:9])
    assert content_keys(x[:1], y[:1] + 1) != keys[0]
    assert content_keys(x[1:2].flip(1), y[:1]) != content_keys(x[1:2].roll(1, 1), y[:1])


@pytest.mark.parametrize(
    ("cls", "step"),
    [
        (FedAvg, SVI(["w", "base"], 3, sgd(0.05, 0.9), per="example")),
        (FedAvg, SVI(["w", "base"], 3, adam(0.01))),
        (FedPer, SVI(["mu"], 2, sgd(0.05), then=[Block(["base"], sgd(0.1), repeats=2)])),
        (FedProx, SVI(["w", "base"], 3, sgd(0.05, 0.9), per="example")),
        (PFedVEM, SVI(["mu", "pi"], 3, sgd(1e-3, 0.9), particles=3)),
        (PFedVEM, SVI(["base"], 3, sgd(1e-3), particles=2, per="example")),
        (PFedVEM, SVI(["mu", "pi"], 2, sgd(1e-3), terms="prior")),
        (FedAvg, SVI(["w", "base"], 3, sgd(0.05), per="example", transform=Clipped(0.1), batch=50, steps=3)),
        (FedProx, SVI(["w"], 3, sgd(0.05), transform=ControlVariate("w", "w", "broadcast.w"), batch=50, steps=3)),
    ],
)
def test_without_noise_and_bound_steps_are_the_plain_ones(cls: type[Method], step: SVI) -> None:
    """Of clients that have as many rows as is public."""
    federation = blobs([8, 8, 8])
    method = cls(architecture("mlp:5", federation))
    chunk = chunk_of(method, federation)
    plain = step.run(chunk, 0)
    steps = step.steps if isinstance(step.steps, int) else step.epochs
    trained = private_svi(step, steps, 8).run(private(chunk, 0.0), 0)
    assert trained.values.keys() == plain.values.keys()
    for name, value in plain.values.items():
        torch.testing.assert_close(trained.values[name], value, rtol=1e-8, atol=1e-11)


def test_noise_has_the_plans_standard_deviation_and_samples_their_rate(net: Architecture) -> None:
    federation = blobs([40] * 30)
    method, rate, seen = FedAvg(net), 0.25, list[Tensor]()
    chunk = chunk_of(method, federation)
    step = SVI(["w", "base"], 1, sgd(1.0), per="example")
    clip, multiplier, patient_rows = 0.1, 30.0, 2
    runs = [
        private_svi(step, 1, 40, rate, observe=seen.append).run(private(chunk, z, clip, patient_rows=patient_rows), 0)
        for z in (multiplier, 0.0)
    ]
    names = [k for k in runs[0].values if k == "w" or k.startswith("base")]
    noise = torch.cat([(runs[0].values[k] - runs[1].values[k]).flatten() for k in names])
    expected = multiplier * patient_rows * clip / rate / 40
    assert float(noise.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 5 * expected / math.sqrt(len(noise))
    drawn = len(torch.cat(seen)) / 2
    assert abs(drawn - 1200 * rate) < 5 * math.sqrt(1200 * rate * (1 - rate))


def test_a_simulations_noise_repeats_in_any_plate_and_a_sites_never_does(small: Federation, net: Architecture) -> None:
    """The same seed at a site gives other samples and other noise."""
    method, step = PFedVEM(net), SVI(["mu", "pi"], 1, sgd(1e-3), particles=2)
    svi = private_svi(step, 2, 10, 0.5)

    def values(order: list[int] | None = None, **how: Any) -> Tensor:
        chunk = private(chunk_of(method, small, order), 1.0, 1.0, **how)
        ran = svi.run(chunk, 0)
        return ran.values["mu"][sorted(range(len(ran.clients)), key=ran.clients.__getitem__)]

    whole = values()
    few = values([4, 2])
    torch.testing.assert_close(few, whole[[2, 4]], rtol=1e-9, atol=1e-12)
    assert not torch.equal(values(seed=1), whole)
    assert torch.equal(values(seed=1), values(seed=1))
    assert not torch.equal(values(system=True), values(system=True))


def renyi_epsilon(rate: float, multiplier: float, releases: int, delta: float) -> float:
    """Of Poisson-sampled Gaussian releases, by Renyi divergences of whole orders (Mironov, Talwar and Zhang, 2019).

    From divergence to epsilon by Canonne, Kamath and Steinke (NeurIPS 2020, proposition 12).
    """
    upper = []
    for order in range(2, 200):
        terms = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * multiplier**2)
            for k in range(order + 1)
        ]  # fmt: skip
        largest = max(terms)
        divergence = (largest + math.log(math.fsum(math.exp(t - largest) for t in terms))) / (order - 1)
        upper.append(releases * divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))
    return min(upper)


@pytest.mark.cpu(12, "a privacy loss distribution of a thousand releases")
@pytest.mark.parametrize(("rate", "multiplier", "releases"), [(10 / 72, 1.2, 120), (0.05, 1.0, 1000)])
def test_epsilon_of_all_steps_is_below_a_referees_and_not_far(rate: float, multiplier: float, releases: int) -> None:
    """Renyi accounting is an upper bound, by a tenth or two above."""
    mechanism = Mechanism("steps", 1.0, releases, rate)
    epsilon = Plan("site", 1e-5, {"steps": Part(mechanism, multiplier)}).epsilon
    referee = renyi_epsilon(rate, multiplier, releases, 1e-5)
    assert 0.75 * referee < epsilon < referee
