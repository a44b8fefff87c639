"""What the server lets in: messages of the declared form, one per client and round, of a sane size; skipped rounds."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom
from support.commands import Call
from support.federations import blobs
from support.methods import TUTORIAL, network_for
from support.rounds import Messages, Rounds, intercepted, rejections, with_rule
from torch import Tensor

from hierfl import Federation, UserError, models
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Method, SampleWeighted, fit
from hierfl.inference.clients.scores import _solve
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.method.schedule import Plan
from hierfl.inference.objective.gaussians import Gaussian
from hierfl.inference.options import Options
from hierfl.inference.run.checkpoint import _checksum as checksum
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.participation import check_participation
from hierfl.inference.server.rules.newton_step import newton_step
from hierfl.models import METHODS, FedAvg, FedPop, FedRep, MixedEffects, PFedVMP, Scaffold
from hierfl.nn.architecture import Architecture

CLIENTS = 10
REGISTRY: list[tuple[Any, dict[str, Any]]] = [(getattr(models, entry.cls), {}) for entry in METHODS.values()]
VARIANTS: list[tuple[Any, dict[str, Any]]] = [
    (PFedVMP, {"precision": "diagonal"}),
    (PFedVMP, {"precision": "count"}),
    (FedPop, {"compress": "quantise:4"}),
    (FedPop, {"inner_phi_steps": 1}),
    (MixedEffects, {"family": "poisson"}),
    (TUTORIAL, {}),
]
#: Local sends nothing
SENDING = [case for case in REGISTRY if case[0].name != "local"] + VARIANTS


def names(case: tuple[Any, dict[str, Any]]) -> str:
    return "-".join([case[0].name or "tutorial", *map(str, case[1].values())])


def ready(case: tuple[Any, dict[str, Any]], dtype: torch.dtype = torch.float64, **options: Any) -> Fit:
    """A fit of ten clients, all in one plate."""
    cls, settings = case
    options = {"dtype": dtype, "rounds": 4, "chunk": CLIENTS, "seed": 3, **options}
    if cls is MixedEffects:
        rng = np.random.default_rng(0)
        who = np.repeat(np.arange(CLIENTS), rng.integers(3, 9, CLIENTS))
        x, b = rng.normal(size=len(who)), rng.normal(size=CLIENTS)
        df = pd.DataFrame({"y": 1 + x + b[who] + rng.normal(size=len(who)), "x": x, "site": [f"s{j}" for j in who]})
        df["k"] = rng.poisson(np.exp(0.3 * x + 0.3 * b[who]))
        family = settings.get("family", "gaussian")
        fed, design = from_formula(df, f"{'k' if settings else 'y'} ~ x + (1 | site)", family=family)
        return Fit(MixedEffects(design, draws=0), fed, Options(**{**options, "splits": ("train",)}))
    fed = blobs([23, 7, 4, 14, 14, 5, 9, 6, 6, 8])
    return Fit(cls(network_for(cls, fed), **settings), fed, Options(**options))


@functools.cache
def _case(index: int, dtype: torch.dtype) -> tuple[Rounds, Messages, list[int]]:
    found = ready(SENDING[index], dtype)
    kept: list[tuple[Messages, list[int]]] = []

    def caught(messages: Messages, clients: Sequence[int]) -> Messages:
        kept.append((copy.deepcopy(messages), list(clients)))
        return messages

    shared = {k: v.clone() for k, v in found.state.shared.items()}
    with torch.no_grad(), intercepted(caught):
        found.engine.round(Broadcast(1, found.state.shared), Plan(range(CLIENTS), range(CLIENTS)))
    ((messages, clients),) = kept
    return Rounds(found.method, found.federation, shared, found.initial, seed=3), messages, clients


def honest(case: tuple[Any, dict[str, Any]], dtype: torch.dtype = torch.float64) -> tuple[Rounds, Messages, list[int]]:
    """A server before its first round, and what its ten clients have to say: real messages of real local steps."""
    return copy.deepcopy(_case(SENDING.index(case), dtype))


def rows(messages: Messages, first: int, last: int) -> Messages:
    return {g: {k: v[first:last].clone() for k, v in m.items()} for g, m in messages.items()}


def finite(server: Rounds) -> bool:
    return all(bool(v.isfinite().all()) for v in server.kept().values())


def after(server: Rounds, messages: Messages, clients: list[int]) -> dict[str, Tensor]:
    """The shared values after a round of these messages, with nothing rejected and nothing skipped."""
    assert server.receive(messages, clients).all()
    server.end()
    assert server.skipped == 0
    return server.shared


def check_the_others_are_used(
    case: tuple[Any, dict[str, Any]], dtype: torch.dtype, spoil: Callable[[Messages], Any], times: int = 1
) -> None:
    """The first client's message is spoilt, and comes first: what follows is as if it had not been sent."""
    server, messages, clients = honest(case, dtype)
    expected = after(copy.deepcopy(server), rows(messages, 1, CLIENTS), clients[1:])
    bad = spoil(rows(messages, 0, 1))
    for _ in range(times):
        assert not server.receive(bad, clients[:1]).any()
    assert server.receive(rows(messages, 1, CLIENTS), clients[1:]).all()
    server.end()
    assert server.skipped == 0
    assert server.rejected.tolist() == [times * (j == clients[0]) for j in range(CLIENTS)]
    assert all(torch.equal(v, expected[k]) and v.dtype == dtype for k, v in server.shared.items())
    server.begin()
    assert server.receive(messages, clients).all()
    server.end()
    assert server.skipped == 0
    assert finite(server)


every = pytest.mark.parametrize("case", SENDING, ids=names)
#: (mixed-effects refuses single precision)
BOTH = [(case, dtype) for dtype in (torch.float32, torch.float64) for case in SENDING]
BOTH = [(case, dtype) for case, dtype in BOTH if case[0] is not MixedEffects or dtype is torch.float64]
every_precision = pytest.mark.parametrize(
    ("case", "dtype"), BOTH, ids=[f"{names(case)}-{str(dtype).removeprefix('torch.')}" for case, dtype in BOTH]
)


def first_of(messages: Messages) -> tuple[str, str]:
    group = next(iter(messages))
    return group, next(iter(messages[group]))


# -- the form ---------------------------------------------------------------------------------------------------------


def test_every_method_that_sends_is_tried() -> None:
    assert {case[0].name for case in SENDING} | {"local"} >= METHODS.keys()


@every_precision
def test_real_messages_have_the_declared_form(case: tuple, dtype: torch.dtype) -> None:
    server, messages, clients = honest(case, dtype)
    for group, message in messages.items():
        form = server.exchange.groups[group].pipeline.sent
        assert message.keys() == form.keys()
        for key, field in form.items():
            assert (message[key].dtype, tuple(message[key].shape[1:])) == (field.dtype, field.shape)
    after(server, messages, clients)
    assert not server.rejected.any()


def test_who_sends_nothing_is_sent_nothing() -> None:
    found = ready((models.Local, {}))
    server = Rounds(found.method, found.federation, found.state.shared, found.initial)
    assert not server.receive({"w": {"w": torch.zeros(1, 3)}}, [0]).any()
    assert server.rejected.tolist() == [1] + [0] * 9


def with_key(messages: Messages, key: str, value: Any, group: str | None = None) -> Messages:
    group = group or next(iter(messages))
    return {**messages, group: {**messages[group], key: value}}


FORMS: dict[str, Callable[[Messages], Any]] = {
    "an extra number": lambda m: with_key(m, "extra", next(iter(m[first_of(m)[0]].values())).new_ones(1)),
    "a key that is no string": lambda m: with_key(m, 7, torch.ones(1)),  # type: ignore[arg-type]
    "another group": lambda m: {**m, "others": m[first_of(m)[0]]},
    "one group less": lambda m: dict(list(m.items())[1:]),
    "nothing": lambda m: {},
    "no mapping": lambda m: [1, 2],
    "no mapping inside": lambda m: dict.fromkeys(m),
    "a list": lambda m: with_key(m, first_of(m)[1], [1.0]),
    "None": lambda m: with_key(m, first_of(m)[1], None),
    "an array": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].numpy()),
    "whole numbers": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].long()),
    "complex numbers": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]] + 0j),
    "sparse": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].to_sparse()),
    "a dimension more": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]][..., None]),
    "a client more": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].repeat_interleave(2, 0)),
}


@every
@pytest.mark.parametrize("what", FORMS)
def test_a_message_of_another_form_is_rejected_and_the_honest_ones_are_used(case: tuple, what: str) -> None:
    check_the_others_are_used(case, torch.float64, FORMS[what])


@every
def test_a_message_that_lacks_a_key_is_rejected(case: tuple) -> None:
    """Each key in turn, weights, confidences, precisions and outer products among them."""
    _, messages, _ = honest(case)
    for group, message in messages.items():
        for key in message:

            def spoil(m: Messages, group: str = group, key: str = key) -> Messages:
                return {**m, group: {k: v for k, v in m[group].items() if k != key}}

            check_the_others_are_used(case, torch.float64, spoil)


@every_precision
def test_a_message_in_another_precision_is_rejected(case: tuple, dtype: torch.dtype) -> None:
    server, _, _ = honest(case, dtype)
    other = {torch.float32: torch.float64, torch.float64: torch.float32}

    def cast(group: str, key: str, value: Tensor) -> Tensor:
        if value.dtype is not torch.uint8:
            return value.to(other[value.dtype])
        field, codec = server.forms[group][key], server.codec(group)  # (bytes that hold a norm in the other precision)
        numbers = codec.decode(value, field.numel, field.dtype).to(other[field.dtype])
        return codec.encode(numbers, torch.zeros_like(numbers))

    check_the_others_are_used(
        case, dtype, lambda m: {g: {k: cast(g, k, v) for k, v in x.items()} for g, x in m.items()}
    )


# -- the numbers ------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_message_that_is_not_finite_is_rejected(case: tuple, poison: float) -> None:
    """Under each key in turn: outer products and precisions among them."""
    server, messages, _ = honest(case)
    for group, message in messages.items():
        for key, value in message.items():
            if not value.numel():
                continue

            def spoil(m: Messages, group: str = group, key: str = key) -> Messages:
                value = m[group][key].clone()
                if value.dtype is torch.uint8:
                    value = server.filled(group, key, value, poison)
                else:
                    value.view(-1)[-1] = poison
                return with_key(m, key, value, group)

            check_the_others_are_used(case, torch.float64, spoil)


#: what is sent beside the values, or instead, and cannot be below zero
SIGNED = ("weight", "tau", "precision", "outer", "counts")
#: what must be above
ABOVE = {"SampleWeighted": "weight", "ClusterMeans": "weight", "PrecisionWeightedMean": "tau", "GibbsDraw": "precision"}


def test_a_negative_weight_is_rejected() -> None:
    """Minus what all others weigh would make the sum zero, and the mean infinite for ever."""
    tried = set()
    for case in SENDING:
        _, messages, _ = honest(case)
        for group, key in [(g, k) for g, message in messages.items() for k in message if k in SIGNED]:
            others = messages[group][key][1:].sum(0, keepdim=True).abs()

            def spoil(m: Messages, group: str = group, key: str = key, others: Tensor = others) -> Messages:
                return with_key(m, key, -others - float(key == "counts"), group)

            check_the_others_are_used(case, torch.float64, spoil)
            tried.add(key)
    assert tried == set(SIGNED)


def test_a_weight_of_zero_is_rejected() -> None:
    tried = set()
    for case in SENDING:
        server, _, _ = honest(case)
        for group, rule in server.rules.items():
            name = type(rule).__name__
            if name in ABOVE:

                def spoil(m: Messages, group: str = group, key: str = ABOVE[name]) -> Messages:
                    return with_key(m, key, torch.zeros_like(m[group][key]), group)

                def silent(m: Messages, group: str = group) -> Messages:  # (it would count towards the quorum)
                    return {**m, group: {k: torch.zeros_like(v) for k, v in m[group].items()}}

                check_the_others_are_used(case, torch.float64, silent)
                check_the_others_are_used(case, torch.float64, spoil)
                tried.add(name)
    assert tried == ABOVE.keys()


@every_precision
def test_finite_numbers_whose_sum_overflows_are_rejected(case: tuple, dtype: torch.dtype) -> None:
    """Two of them, each finite: 3e38 in single precision."""
    server, messages, clients = honest(case, dtype)
    expected = after(copy.deepcopy(server), rows(messages, 2, CLIENTS), clients[2:])
    for group, message in messages.items():
        for key, value in message.items():
            size = torch.finfo(server.forms[group][key].dtype).max
            value[:2] = server.filled(group, key, value[:2], 0.9 * size)
    assert server.receive(messages, clients).tolist() == [False] * 2 + [True] * 8
    server.end()
    assert server.skipped == 0
    assert server.rejected.sum() == 2
    # (a sum over ten rows, two of them zero, may round otherwise than one over eight)
    near = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    assert all(torch.allclose(v, expected[k], rtol=near, atol=near) for k, v in server.shared.items())


@every_precision
def test_the_largest_numbers_let_in_leave_state_and_memory_finite(case: tuple, dtype: torch.dtype) -> None:
    """All clients just below the ceiling, without the bound: neither sums nor an optimiser's squares are infinite."""
    server, messages, clients = honest(case, dtype)
    server.max_message_ratio = 0.0
    for group, message in messages.items():
        for key, value in message.items():
            largest = 0.999 * server.receiver.ceiling(server.forms[group][key].dtype)
            # (a gradient's outer product is sent, too, and is its square)
            squared = "outer" in message and key.startswith("effects.")
            value[:] = server.filled(group, key, value, largest**0.5 if squared else largest)
    for _ in range(3):
        server.begin()
        assert server.receive(messages, clients).all()
        server.end()
        assert finite(server)
    assert server.skipped == 0


def scaled(server: Rounds) -> list[tuple[str, str]]:
    return [(g, k) for g, form in server.forms.items() for k, field in form.items() if field.scaled]


@every
def test_a_value_is_bounded_relative_to_the_broadcast_one(case: tuple) -> None:
    """Just below the bound it is used, just above it is not: after the weight inside is divided out."""
    server, messages, clients = honest(case)
    server.max_message_ratio = 50.0
    for group, key in scaled(server):
        broadcast = max(1.0, float(server.shared[key].abs().max()))
        for share, used in ((0.99, True), (1.01, False)):
            message = rows(messages, 0, 1)
            field, value = server.forms[group][key], message[group][key]
            weight = value.new_ones(1) if field.weight is None else field.weight(message[group])
            weight = weight.view(*weight.shape, *[1] * (value.dim() - weight.dim()))
            if field.value is not None:  # h = Lambda mu, all of mu the same
                weight = Gaussian.unpacked(value, message[group]["precision"], "full").precision.sum(-1)
            message[group][key] = (share * 50 * broadcast * weight).expand_as(value).clone()
            server.begin()
            assert server.receive(message, clients[:1]).tolist() == [used], (group, key, share)


def test_only_gradients_and_counts_have_no_scale() -> None:
    servers = [honest(case)[0] for case in SENDING]
    bounded = {type(server.rules[group]).__name__ for server in servers for group, _ in scaled(server)}
    rules = {type(rule).__name__ for server in servers for rule in server.rules.values()}
    assert rules - bounded == {"Gradient", "NewtonScoring", "CountSum", "RunningMean"}


@pytest.mark.parametrize("size", [1e30, 1e9])
def test_one_of_ten_clients_does_not_move_the_mean(size: float) -> None:
    """FedAvg, one client's weights 1e30 in every round: the fit is the one without that client, number by number."""

    def fitted(hit: float | None, ratio: float) -> Fit:
        found = ready((FedAvg, {}), rounds=15, max_message_ratio=ratio)

        def spoilt(messages: Messages, clients: Sequence[int]) -> Messages:
            for key in () if hit is None else sorted(messages["base"].keys() - {"weight"}):
                messages["base"][key][clients.index(3)] = hit
            return messages

        with intercepted(spoilt):
            found.run(progress=False)
        return found

    well, hit, without = fitted(None, 1e6), fitted(size, 1e6), fitted(float("nan"), 1e6)
    ends = [found.journal.evaluations[-1] for found in (well, hit)]
    assert ends[0]["rejected"] == 0
    assert ends[1]["rejected"] == rejections(hit)[3] == 15
    assert all(torch.equal(v, without.state.shared[k]) for k, v in hit.state.shared.items())
    assert ends[1]["pm_accuracy"] > ends[0]["pm_accuracy"] - 0.05
    loose = fitted(size, 0.0)  # (no bound lets it in)
    assert max(float(v.abs().max()) for v in loose.state.shared.values()) > size / 100


# -- who sends --------------------------------------------------------------------------------------------------------


@every
def test_a_client_counts_once_in_a_round(case: tuple, caplog: pytest.LogCaptureFixture) -> None:
    """Fifty times the same message, in one call or in fifty."""
    server, messages, clients = honest(case)
    one = rows(messages, 0, 1)
    expected = after(copy.deepcopy(server), one, clients[:1])
    fifty = {g: {k: v.repeat_interleave(50, 0) for k, v in m.items()} for g, m in one.items()}
    together, apart = copy.deepcopy(server), copy.deepcopy(server)
    with caplog.at_level(logging.WARNING, "hierfl"):
        assert together.receive(fifty, clients[:1] * 50).tolist() == [True] + [False] * 49
    assert "had sent one in this round" in caplog.text
    assert [bool(apart.receive(one, clients[:1])) for _ in range(50)] == [True] + [False] * 49
    for found in (together, apart):
        assert found.receiver.sums.reported == 1
        found.end()
        assert found.skipped == 0
        assert found.rejected.tolist() == [49 * (j == clients[0]) for j in range(CLIENTS)]
        # (a sum with 49 rows of zeros may round otherwise)
        assert all(torch.allclose(v, expected[k], rtol=1e-12) for k, v in found.shared.items())
        found.begin()
        assert found.receive(one, clients[:1]).all()  # a new round


@every
@pytest.mark.parametrize("index", [-1, CLIENTS, 10**30, True, 1.0, "0", None], ids=repr)
def test_a_client_that_does_not_exist_is_rejected(case: tuple, index: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, messages, clients = honest(case)
    expected = after(copy.deepcopy(server), rows(messages, 1, CLIENTS), clients[1:])
    with caplog.at_level(logging.WARNING, "hierfl"):
        assert server.receive(messages, [index, *clients[1:]]).tolist() == [False] + [True] * 9
    assert "do not exist" in caplog.text
    assert server.receiver.unknown == 1
    server.end()
    assert not server.rejected.any()
    assert all(torch.allclose(v, expected[k], rtol=1e-12, atol=1e-12) for k, v in server.shared.items())


def test_a_message_that_cannot_be_read_is_no_clients_first() -> None:
    server, messages, clients = honest((FedAvg, {}))
    assert not server.receive({}, clients[:1]).any()
    assert server.receive(rows(messages, 0, 1), clients[:1]).all()
    assert server.rejected[clients[0]] == 1


# -- skipped rounds ---------------------------------------------------------------------------------------------------


class Failing:
    """A rule whose update goes wrong, after it has changed what it remembers."""

    def __init__(self, rule: Any, how: str) -> None:
        self.rule, self.how = rule, how
        self.sends_gradients = rule.sends_gradients

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def update(self, old: Any, total: Any, context: Any) -> Any:
        new = self.rule.update(old, total, context)
        for value in context.rule_state.values():
            value += 1
        if self.how == "raises":
            torch.linalg.cholesky(torch.zeros(2, 2))
        if self.how == "divides":
            _ = 1 / 0
        return {k: torch.full_like(v, torch.nan) for k, v in new.items()}


@every
@pytest.mark.parametrize("how", ["raises", "divides", "is not finite"])
@pytest.mark.parametrize("begun", [False, True], ids=["first", "second"])
def test_a_round_whose_update_fails_is_skipped(case: tuple, how: str, begun: bool) -> None:
    """Nothing changes, what optimisers remember neither; and the next round is as if it had not been."""
    server, messages, clients = honest(case)
    if begun:
        after(server, messages, clients)
        server.begin()
    before = copy.deepcopy(server.kept())
    spared = copy.deepcopy(server)
    last, whole = list(server.rules.items())[-1]
    with_rule(server.exchange, last, Failing(whole, how))
    assert server.receive(messages, clients).all()
    server.end()
    assert server.skipped == 1
    assert all(value == 0 for value in server.state.update_norm.values())
    now = server.kept()
    assert all(torch.equal(now[k], v) for k, v in before.items())
    assert not any(now[k].any() for k in now.keys() - before.keys())  # (what has not begun is zero)
    with_rule(server.exchange, last, whole)
    for one in (server, spared):
        one.state = dataclasses.replace(one.state, round=5)  # (schedules go on in skipped rounds)
        one.begin()
        assert one.receive(messages, clients).all()
        one.end()
    assert server.skipped == 1
    assert all(torch.equal(v, spared.shared[k]) for k, v in server.shared.items())


@pytest.mark.parametrize("how", ["raises", "is not finite"])
def test_who_was_not_heard_has_not_moved_in_a_failed_round(how: str) -> None:
    found = ready((Scaffold, {}))
    exchange = found.server.exchange
    rule = exchange.groups["w"].rule
    found.step()
    before = {k: v.clone() for k, v in found.fitted().personal.items()}
    with_rule(exchange, "w", Failing(rule, how))
    found.step()
    assert found.state.skipped == 1
    assert all(torch.equal(found.fitted().personal[k], v) for k, v in before.items())
    with_rule(exchange, "w", rule)
    found.step()
    personal = found.fitted().personal
    assert not torch.equal(personal["c_j"], before["c_j"])
    assert torch.allclose(found.state.shared["c"], personal["c_j"].mean(0), rtol=1e-9, atol=1e-12)


def test_who_repeats_itself_has_not_moved_when_the_first_message_was_refused() -> None:
    """A client whose value is too large keeps its state, where only those move who are heard."""
    found = ready((Scaffold, {}), max_message_ratio=1.0)

    def too_large(messages: Messages, clients: Sequence[int]) -> Messages:
        messages["w"]["w"][clients.index(3)] = 1e3
        return messages

    with intercepted(too_large):
        found.step()
    own = found.fitted().personal["c_j"]
    assert not own[3].any()
    assert own[4].any()
    assert rejections(found) == [int(j == 3) for j in range(CLIENTS)]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_decompositions_report_failure(poison: float) -> None:
    bad = torch.eye(3, dtype=torch.float64)
    bad[0, 0] = poison
    ones, eye = torch.ones(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    free = torch.ones(3, dtype=torch.bool)
    for matrices in ((bad, eye, eye), (eye, bad, eye)):
        step, _ = newton_step(ones, *matrices, free, torch.tensor(5.0).double())
        assert step.isnan().any()
    both = Gaussian(torch.stack([ones, ones]), torch.stack([bad, eye]), "full")
    found = both.mean(torch.zeros(2, 3, dtype=torch.float64))
    assert not found[0].isfinite().all()
    assert torch.equal(found[1], ones)


@pytest.mark.parametrize("settings", [{}, {"family": "poisson"}], ids=["gaussian", "poisson"])
def test_a_singular_system_is_one_clients_failure(settings: dict[str, str]) -> None:
    """What draws know of the curvature, and the modes of random effects: the other rows keep their answers."""
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    right = torch.ones(2, 2, 3, dtype=torch.float64)
    found = _solve(torch.stack([eye, zero]), right)
    assert torch.equal(found[0], right[0])
    assert found[1].isnan().all()
    fit_of = ready((MixedEffects, settings))
    x = fit_of.federation.x.clone()
    x[fit_of.federation.train[4]] = 1e300  # (squared, it is infinite)
    sick = Fit(fit_of.method, dataclasses.replace(fit_of.federation, x=x), fit_of.options)
    sick.step()
    assert rejections(sick) == [int(j == 4) for j in range(CLIENTS)]
    assert sick.journal.diverged == 1
    kept = [v for held in sick.state.rule_state.values() for v in held.values()]
    assert all(bool(v.isfinite().all()) for v in [*sick.state.shared.values(), *kept])


# -- rules of one's own -----------------------------------------------------------------------------------------------


class Plain:
    """A rule of one's own that says nothing of its messages' form: the values, and nothing else."""

    sends_gradients = False

    def message(self, names: Any, chunk: Any) -> dict[str, Tensor]:
        return {name: chunk.values[name].squeeze(1) for name in names}

    def update(self, old: Any, total: Any, context: Any) -> Any:
        return {name: total[name] / context.reported for name in old}


class Wordy(Plain):
    def message(self, names: Any, chunk: Any) -> dict[str, Tensor]:
        return {**super().message(names, chunk), "weight": chunk.n}


class Widening(Plain):
    def update(self, old: Any, total: Any, context: Any) -> Any:
        return {name: value.double() for name, value in super().update(old, total, context).items()}


def own(rule: Any, net: Architecture) -> Method:
    class Own(FedRep):
        def exchange(self) -> dict[str, Any]:
            return {"base": rule}

    return Own(net)


def test_a_rule_without_a_form_sends_the_values(small: Federation, net: Architecture) -> None:
    run = fit(own(Plain(), net), small, rounds=2, progress=False)
    assert run.last()["rejected"] == run.last()["skipped"] == 0


def test_a_rule_that_sends_more_than_it_declares_is_refused(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match=r"Wordy, .* of 'base', sends what it does not declare: .*Wordy.form\(old\)"):
        fit(own(Wordy(), net), small, rounds=2, progress=False)


def test_a_rule_that_changes_a_values_type_is_refused(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="Widening, .* makes 'base.* of torch.float64; it was .* of torch.float32"):
        fit(own(Widening(), net), small, rounds=2, dtype=torch.float32, progress=False)


def test_a_fault_in_a_rules_code_skips_no_round(small: Federation, net: Architecture) -> None:
    class Faulty(SampleWeighted):
        def update(self, old: Any, total: Any, context: Any) -> Any:
            raise KeyError("nothing")

    with pytest.raises(KeyError):
        fit(own(Faulty(), net), small, rounds=2, progress=False)


# -- options and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"device": "hpu"}, "device 'hpu' is not there; available: cpu"),
        ({"device": "mkldnn"}, "device 'mkldnn' is not there"),
        ({"device": 0.5}, "device 0.5 is not there"),
        ({"draws": 1e20}, r"draws must be a whole number of at least 1, not 1e\+20"),
        ({"draws": 10**20}, "draws must be at most 2147483647"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"rounds": "3"}, "rounds must be a whole number of at least 0, not '3'"),
        ({"chunk": 2**40}, "chunk must be at most"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"participation": "half"}, "participation must be a number, not 'half'"),
        ({"participation": float("nan")}, "participation must lie in"),
        ({"max_message_ratio": 0.5}, r"max_message_ratio must be 0 \(none\) or from 1 to 1e\+15, not 0.5"),
        ({"max_message_ratio": -1.0}, "max_message_ratio must be 0"),
        ({"max_message_ratio": float("nan")}, "max_message_ratio must be 0"),
        ({"max_message_ratio": float("inf")}, "max_message_ratio must be 0"),
        ({"max_message_ratio": "much"}, "max_message_ratio must be a number"),
        ({"dtype": torch.int64}, "torch.float32 or torch.float64, not torch.int64"),
    ],
)
def test_options_that_cannot_be(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        Options(**how)
    assert "\n" not in str(error.value)


def test_a_seed_may_be_as_large_as_a_configuration_can_hold() -> None:
    assert Options(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "hpu"], "device 'hpu' is not there"),
        (["--draws", "100000000000000000000"], "draws must be at most"),
        (["--draws", "1e20"], "Invalid value for '--draws'"),
        (["--seed", "99999999999999999999"], "seed must be at most"),
        (["--rounds", "99999999999999999999"], "rounds must be at most"),
        (["--max-message-ratio", "0.1"], "max_message_ratio must be 0"),
        (["--set", "particles=1e20"], "particles must be at most 2147483647 in size, not 1e20"),
        (["--set", "sigma_0=1e300"], "sigma_0 must be at most 3.4e+38 in size, not 1e300"),
        (["--participation", "0.0001", "--quorum", "3"], "3 practically never report together; raise --participation"),
        (["--participation", "1e-300"], "1 practically never report together; raise --participation"),
    ],
)
def test_extreme_numbers_get_one_line_and_leave_nothing(
    arguments: list[str], words: str, hierfl: Call, tmp_path: Path
) -> None:
    code, _, err = hierfl("run", "pfedvem", *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_initial_values_that_are_not_finite_are_refused(small: Federation, net: Architecture) -> None:
    class Endless(FedAvg):
        def shared(self, start: Any) -> Any:
            return {**super().shared(start), "w": torch.full_like(start.head, 1e300)}

    with pytest.raises(UserError, match="the initial value of 'w' is not finite in torch.float32"):
        Fit(Endless(net), small, Options(dtype=torch.float32))
    Fit(Endless(net), small, Options(dtype=torch.float64))


@pytest.mark.parametrize(
    ("clients", "probability", "least"), [(10, 0.1, 2), (2, 0.1, 2), (100, 0.01, 1), (1000, 0.5, 500), (3, 1.0, 3)]
)
def test_participation_that_happens_is_let_in(clients: int, probability: float, least: int) -> None:
    check_participation(clients, probability, least)


def test_the_chance_of_a_quorum_is_the_binomials() -> None:
    """Refused just where 10,000 draws would fail more often than once in a hundred million rounds."""
    chance = -math.log(1e-8) / 10_000
    for clients, least in ((5, 5), (12, 3)):
        edge = brentq(lambda p, n=clients, k=least: binom.sf(k - 1, n, p) - chance, 1e-9, 0.9, xtol=1e-14)
        check_participation(clients, edge * 1.001, least)
        with pytest.raises(UserError, match="practically never report together"):
            check_participation(clients, edge * 0.999, least)


OWN = '''
from pathlib import Path
from hierfl.models import FedAvg

class Mine(FedAvg):
    """Fails in round 3 as long as there is a file called stop."""

    def local(self):
        steps = super().local()

        class Step:
            trains = steps[0].trains

            def run(self, chunk, phase):
                if chunk.round == 3 and Path("stop").exists():
                    raise RuntimeError("out of\\nluck")
                return steps[0].run(chunk, phase)

        return [Step()]
'''


def test_a_method_of_ones_own_that_fails_later_is_one_line_and_can_go_on(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "stop").touch()
    command = ("run", "mine.py", "--clients", 4, "--split", "iid", "--rounds", 4, "--quiet", "--out")
    code, _, err = hierfl(*command, "stopped")
    assert code == 2
    assert err.splitlines() == [
        f"error: {tmp_path / 'mine.py'} failed at round 3 of 4: RuntimeError: out of (line 16, in run)"
    ]
    (tmp_path / "stop").unlink()
    assert hierfl("run", "--resume", "stopped", "--quiet")[0] == 0
    assert hierfl(*command, "whole")[0] == 0
    a, b = ((tmp_path / name / "clients.csv").read_bytes() for name in ("stopped", "whole"))
    assert a == b


def test_the_bound_reaches_the_fit_and_is_kept_by_a_resumed_one(hierfl: Call, tmp_path: Path) -> None:
    command = ("run", "fedavg", "--clients", 4, "--split", "iid", "--rounds", 2, "--quiet")
    assert hierfl(*command, "--max-message-ratio", 1, "--out", "tight")[0] == 0
    assert "max_message_ratio = 1.0" in (tmp_path / "tight/config.toml").read_text()
    record = json.loads((tmp_path / "tight/checkpoint/checkpoint.json").read_text())
    assert record["fit"]["max_message_ratio"] == 1.0
    assert hierfl(*command, "--out", "other")[0] == 0
    config, state = tmp_path / "other/config.toml", tmp_path / "other/checkpoint/checkpoint.json"
    summary = (tmp_path / "other/summary.json").read_text()
    config.write_text("".join(x for x in config.read_text().splitlines(True) if "max_message_ratio" not in x))
    assert hierfl("run", "--resume", "other", "--quiet")[0] == 0  # (it is the default)
    assert (tmp_path / "other/summary.json").read_text() == summary
    record = json.loads(state.read_text())
    assert record["fit"]["max_message_ratio"] == 1e6
    for changed in ({"max_message_ratio": 10.0}, {}):  # (another one; none)
        del record["fit"]["max_message_ratio"]
        record["fit"] |= changed
        record["checksum"] = checksum(record)
        state.write_text(json.dumps(record))
        code, _, err = hierfl("run", "--resume", "other", "--quiet")
        assert (code, "begun with a different max_message_ratio" in err) == (2, True)


# -- messages whose parts do not fit together -------------------------------------------------------------------------


def packed(matrix: Tensor) -> Tensor:
    """Lower triangles, row by row."""
    k, column = torch.tril_indices(*matrix.shape[-2:])
    return matrix[..., k, column]


@pytest.mark.parametrize("hostile", ["indefinite", "out of range"])
def test_a_full_precision_is_one_and_bounds_its_mean(hostile: str) -> None:
    """Zeros beside 1e6 undid what all others said; a singular block let a mean through that lies anywhere."""
    server, messages, clients = honest((PFedVMP, {}))
    (message,) = [m for m in messages.values() if "precision" in m]
    (name,) = [k for k in message if k != "precision"]
    d = message[name].shape[-1]
    matrix = torch.zeros(d, d, dtype=torch.float64)
    h = torch.zeros(d, dtype=torch.float64)
    if hostile == "indefinite":
        matrix[0, 1] = matrix[1, 0] = 1e6
    else:
        matrix[:2, :2] = 1e12
        h[:2] = torch.tensor([1e17, -1e17])
    message["precision"][0], message[name][0] = packed(matrix), h
    alone = copy.deepcopy(server)
    used = server.receive(messages, clients)
    assert used.tolist() == [False] + [True] * 9
    alone.receive(rows(messages, 1, 10), clients[1:])
    for one in (server, alone):
        one.end()
    for name, value in server.shared.items():  # (a sum of ten, one of them zero, is rounded otherwise than one of nine)
        assert torch.allclose(value, alone.shared[name], rtol=1e-10)


def test_a_client_without_a_class_says_nothing_of_it() -> None:
    """Zero precision and zero h are a message, too; and singular ones are, where h = Lambda mu."""
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    precision, mu = 1e8 * root @ root.T, torch.randn(6, generator=rng, dtype=torch.float64)
    both = Gaussian(
        torch.stack([precision @ mu, torch.zeros(6).double()]), torch.stack([precision, 0 * precision]), "full"
    )
    found = both.regularised_mean()
    assert found[1].tolist() == [0.0] * 6
    assert torch.allclose(precision @ found[0], precision @ mu, rtol=1e-6)
    assert found[0].norm() < 3 * mu.norm()


def test_an_outer_product_is_the_gradients() -> None:
    server, messages, clients = honest((MixedEffects, {"family": "poisson"}))
    messages["effects"]["outer"][3] *= 2
    assert server.receive(messages, clients).tolist() == [True] * 3 + [False] + [True] * 6


@pytest.mark.parametrize("key", ["observed", "profile"])
def test_curvature_out_of_all_proportion_does_not_outlive_its_round(key: str) -> None:
    """A round that would drown what is remembered is skipped; it froze the fit for thousands of rounds."""
    found = ready((MixedEffects, {"family": "poisson"}))
    k = found.server.exchange.groups["effects"].form[key].shape[0]

    def tampered(messages: Messages, clients: Sequence[int]) -> Messages:
        if len(found.journal.status) == 2:  # (of the rounds that have ended)
            messages["effects"][key][0] = 1e140 * torch.eye(k, dtype=torch.float64)
        return messages

    before = None
    for number in range(1, 5):
        with intercepted(tampered):
            found.step()
        now = found.state.shared
        assert int(found.state.skipped) == (number >= 3)
        if number in (3, 4):
            same = all(torch.equal(v, before[name]) for name, v in now.items())
            assert same == (number == 3)
        before = now
