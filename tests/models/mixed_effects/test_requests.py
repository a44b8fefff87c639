"""What clients are asked: one list, from which a message's form, its answers and its cost follow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.search.loop import PHASES, PopulationSearch
from hierfl.models.mixed_effects.search.requests import CARRIED, REQUESTS, Asked, Phase, carried, evaluated

SITES, REGIONS = "y ~ x + (1 | site)", "y ~ x + (1 | region/site)"
#: response, formula, fields of a message, and points that a round of each phase evaluates: there are 256 or 128 points
#: of many at most, and 9 nodes of a region
KINDS = {
    "gaussian": ("gaussian", SITES, {"cross": 7, "cross_1": 14, "cross_2": 28, "many": 1792, "counts": 2}, 1, 256),
    "quadrature": (
        "poisson", SITES,
        {"height": 1, "slope": 3, "curvature": 9, "many": 128, "squares": 2, "left": 2, "counts": 2}, 1, 128,
    ),
    "nodes": (
        "poisson", REGIONS,
        {
            "height": 18, "slope": 90, "curvature": 450, "many": 2304, "squares": 2, "left": 2, "by_region": 10,
            "counts": 2,
        }, 9, 1152,
    ),
}  # fmt: skip


def clients(kind: str) -> ClientChunk:
    """Six sites in two regions, as they begin."""
    family, formula = KINDS[kind][:2]
    site = np.arange(18) % 6
    df = pd.DataFrame({"site": site.astype(str), "region": (site % 2).astype(str), "x": np.arange(18) % 5, "y": site})
    federation, design = from_formula(df, formula, family=family, client="site")  # type: ignore[arg-type]
    method = MixedEffects(design)
    begin = InitialWeights.for_network(design, 0)
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    own = {k: v.expand(6, 1, *v.shape) for k, v in method.personal(begin).items()}
    chunk = ClientChunk(method, federation.to("cpu", torch.float64), range(6), 1, 0, shared, own)
    for step in method.local():
        chunk = step.run(chunk, 0)
    return chunk


@pytest.mark.parametrize("kind", KINDS)
def test_form_answers_and_cost_follow_from_the_list(kind: str) -> None:
    chunk, (_, _, fields, once, many) = clients(kind), KINDS[kind]
    method, search = chunk.method, PopulationSearch(chunk.method)
    form = search.form({})
    assert {name: field.numel for name, field in form.items()} == fields
    asked = Asked(method, chunk.shared, method.likelihood.rows(chunk), chunk)
    for request in (candidate for candidate in REQUESTS if candidate.reply(method)):
        answer = request.answer(asked)
        assert {name: value.shape[1:] for name, value in answer.items()} == request.reply(method), request.name
    points = {Phase.CLIMB: once, Phase.RESTRICT: once, Phase.PROFILE: once, Phase.MODE: once, Phase.DONE: 0}
    for phase in Phase:
        shared = {**chunk.shared, "effects.phase": torch.tensor(float(phase))}
        shared.pop("effects.boundary")
        assert evaluated(method, shared) == points.get(phase, many), phase
        asks = {name for request in carried(method, shared) for name in request.reply(method)}
        sent = search.message([], ClientChunk(method, chunk.federation, range(6), 1, 0, shared, chunk.values))
        assert sent.keys() == form.keys()
        assert all((value == 0).all() for name, value in sent.items() if name not in asks), phase


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_of_many_points_has_room_for_one_with_derivatives(kind: str) -> None:
    """That of a test of standard deviations; at nodes of regions there is none, since they would have to move."""
    chunk, (_, _, _, once, many) = clients(kind), KINDS[kind]
    shared = {**chunk.shared, "effects.phase": torch.tensor(float(Phase.EXPLORE))}
    beside = once if kind != "nodes" else 0
    assert evaluated(chunk.method, shared) == many + beside
    shared["effects.boundary"] = torch.zeros_like(shared["effects.boundary"])  # all of them are done
    assert evaluated(chunk.method, shared) == many


def test_a_round_carries_what_its_phase_asks() -> None:
    assert all(phase.request in CARRIED[phase.number] for phase in PHASES)


def test_a_round_without_a_client_is_skipped() -> None:
    """Its sums are of another table: the next one asks the same, and nothing else has changed."""
    chunk = clients("gaussian")
    search, memory = PopulationSearch(chunk.method), {"kept": torch.ones(())}
    context = AggregationContext(7, torch.tensor(6.0), 1, lambda names: {}, memory, chunk.shared)
    new = search.update(chunk.shared, {k: v.sum(0) for k, v in search.message([], chunk).items()}, context)
    assert [k for k in new if not torch.equal(new[k], chunk.shared[k])] == ["effects.to_go"]
    assert memory.keys() == {"kept"}
