"""Honest messages of every method that sends some, and servers that get them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.federations import blobs
from support.methods import TUTORIAL, network_for
from support.representatives import cover, of_all, of_messages
from support.rounds import Messages, Rounds, intercepted
from torch import Tensor

from hierfl import Federation, models
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Method
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.method.capabilities import is_tabular, needs_everyone
from hierfl.inference.method.schedule import Plan
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import METHODS, FedPop, MixedEffects, PFedVMP

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
    options = {"dtype": dtype, "rounds": 4, "chunk": CLIENTS, "seed": 3, **options}
    method, federation = made(case)
    splits = {"splits": ("train",)} if is_tabular(method) else {}
    return Fit(method, federation, Options(**options, **splits))


def made(case: tuple[Any, dict[str, Any]]) -> tuple[Method, Federation]:
    """A method, and the data of ten clients."""
    cls, settings = case
    if cls is MixedEffects:
        rng = np.random.default_rng(0)
        who = np.repeat(np.arange(CLIENTS), rng.integers(3, 9, CLIENTS))
        x, b = rng.normal(size=len(who)), rng.normal(size=CLIENTS)
        df = pd.DataFrame({"y": 1 + x + b[who] + rng.normal(size=len(who)), "x": x, "site": [f"s{j}" for j in who]})
        df["k"] = rng.poisson(np.exp(0.3 * x + 0.3 * b[who]))
        family = settings.get("family", "gaussian")
        fed, design = from_formula(df, f"{'k' if settings else 'y'} ~ x + (1 | site)", family=family)
        return MixedEffects(design, draws=0), fed
    fed = blobs([23, 7, 4, 14, 14, 5, 9, 6, 6, 8])
    return cls(network_for(cls, fed), **settings), fed


@functools.cache
def _case(index: int, dtype: torch.dtype) -> tuple[Rounds, Messages, list[int]]:
    fit = ready(SENDING[index], dtype)
    kept: list[tuple[Messages, list[int]]] = []

    def caught(messages: Messages, clients: Sequence[int]) -> Messages:
        kept.append((copy.deepcopy(messages), list(clients)))
        return messages

    shared = {k: v.clone() for k, v in fit.state.shared.items()}
    with torch.no_grad(), intercepted(caught):
        fit.engine.round(Broadcast(1, fit.state.shared), Plan(range(CLIENTS), range(CLIENTS)))
    ((messages, clients),) = kept
    return Rounds(fit.method, fit.federation, shared, fit.initial, seed=3), messages, clients


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


#: those of which a round counts also where some messages are missing
PARTIAL = [case for case in SENDING if not needs_everyone(case[0])]
#: those with every rule and every stage of a pipeline; the others are in the slow set
_CHOSEN = cover({names(case): of_messages(made(case)[0]) for case in PARTIAL})
QUICK = [case for case in PARTIAL if names(case) in _CHOSEN]
every = pytest.mark.parametrize("case", of_all(PARTIAL, QUICK, names))
every_precision = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(
            *param.values, torch_type, id=f"{param.id}-{str(torch_type).removeprefix('torch.')}", marks=param.marks
        )
        for torch_type in (torch.float32, torch.float64)
        for param in of_all(PARTIAL, QUICK, names)
    ],
)


def first_of(messages: Messages) -> tuple[str, str]:
    group = next(iter(messages))
    return group, next(iter(messages[group]))


def with_key(messages: Messages, key: str, value: Any, group: str | None = None) -> Messages:
    group = group or next(iter(messages))
    return {**messages, group: {**messages[group], key: value}}


def scaled(server: Rounds) -> list[tuple[str, str]]:
    return [(g, k) for g, form in server.forms.items() for k, field in form.items() if field.scaled]
