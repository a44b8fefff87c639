"""Fits that must not depend on where the clients are: every method, with messages that are rejected or lost."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.any_models import brief, normal
from support.any_models import small as small_model
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs, costs
from support.methods import case_name, network_for
from support.mixed import table
from support.pfedvmp import bumps
from support.representatives import cover, mechanisms, of_messages, of_steps
from torch import Tensor

from hierfl import Federation
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Method, Run, fit
from hierfl.inference.method.capabilities import needs_everyone
from hierfl.inference.method.learned_sd import with_learned_sd
from hierfl.inference.method.settings import applicable
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import State
from hierfl.metrics.pooling import HISTOGRAM
from hierfl.models import FedPop, MixedEffects, PFedVEM, PFedVMP
from hierfl.nn.likelihoods import Learned
from hierfl.nn.networks.build import architecture

#: three rounds, in the second of which a message is not finite, and in the third all of them; plates of one client
HOW: dict[str, Any] = {
    "rounds": 3, "participation": 0.7, "draws": 3, "dtype": torch.float64, "progress": False, "chunk": 1,
}  # fmt: skip
SPOILED = {2: (1,), 3: (0, 1, 2, 3, 4)}
#: where a round counts only with everybody's message: until it is done, two rounds skipped
WHOLE: dict[str, Any] = {**HOW, "rounds": 20, "participation": 1.0}
KERNELS: list[dict[str, Any]] = [
    {"kernel": "metropolis", "chains": 2}, {"compress": "quantise:4"}, {"compress": "sparsify:0.5"}
]  # fmt: skip
#: traits of what is computed for one client, which is the same wherever it is
OF_ONE = ("guide ", "model ", "layer: ")
MakeFit = Callable[[], tuple[Method, Federation]]


def _plain(cls: type[Method], settings: dict[str, Any]) -> MakeFit:
    def make() -> tuple[Method, Federation]:
        federation = blobs([23, 7, 2, 14, 9])
        more = FEW_STEPS.get(cls, {})
        return small(cls(network_for(cls, federation), **more | settings)), federation

    return make


def _centroids() -> tuple[Method, Federation]:
    federation = bumps(test=0.3)
    return small(PFedVMP(architecture("mlp:6", federation))), federation


def _mixed(family: str) -> MakeFit:
    def make() -> tuple[Method, Federation]:
        df = table(5)
        if family != "gaussian":
            df["y"] = (df["y"] > df["y"].median()).astype(int)
        federation, design = from_formula(df, "y ~ x + (1 + x | site)", family=family, test=0.2)
        return MixedEffects(design, draws=20), federation

    return make


def _regression(whose: Learned) -> MakeFit:
    def make() -> tuple[Method, Federation]:
        federation = costs([23, 7, 2, 14, 9])
        return with_learned_sd(PFedVEM(architecture("linear", federation, whose)), federation)

    return make


#: {name: what makes the method and its data}
CASES: dict[str, MakeFit] = {
    # Ranks and sites hear one broadcast, and refuse replies to single clients.
    **{case_name(case): _plain(*case) for case in METHODS if not case[0].replies},
    **{case_name((FedPop, kernel)): _plain(FedPop, kernel) for kernel in KERNELS},
    "pfedvmp": _centroids,
    "mixed-gaussian": _mixed("gaussian"),
    "mixed-binomial": _mixed("binomial"),
    "regression-shared": _regression("shared"),
    "regression-clients": _regression("clients"),
    "plain-model": functools.partial(small_model, brief),
    "plain-exact": functools.partial(small_model, normal),
}


@functools.cache
def quick() -> list[str]:
    """Those that between them use every mechanism but steps, distributions and layers: a site computes as a plate of
    one, and what a client's steps give on plates of any size is a test of invariants.
    """
    used = {}
    for name, make in CASES.items():
        method, federation = make()
        steps = of_steps(method) - of_messages(method)
        used[name] = [
            mechanism for mechanism in mechanisms(method, federation) - steps if not mechanism.startswith(OF_ONE)
        ]
    return cover(used)


@functools.cache
def quick_messages() -> list[str]:
    """Those that between them use every rule and every stage of a pipeline: what ranks add up."""
    return cover({name: of_messages(make()[0]) for name, make in CASES.items()})


def plate(names: Iterable[str]) -> Callable[[Path], None]:
    """Fills a folder with these cases' fits on one plate: what every other engine is compared with."""

    def fill(folder: Path) -> None:
        for name in names:
            method, federation = CASES[name]()
            with spoiled_messages():
                keep(fit(method, named(federation), **how_of(method)), folder / name)

    return fill


def how_of(method: Method) -> dict[str, Any]:
    """How a case is run."""
    return WHOLE if needs_everyone(method) else HOW


def small(method: Method) -> Method:
    """With a hundredth of each step size: where steps are long, ReLU and momentum amplify rounding."""
    settings = method.settings
    steps = [f.name for f in dataclasses.fields(settings) if f.name in ("lr", "step_size") or f.name.endswith("_lr")]
    kept = {name: getattr(settings, name) for name in steps if name not in ("server_lr", "inner_lr")}
    changed = {name: value / 100 for name, value in kept.items() if isinstance(value, float) and value}
    return type(method)(method.network, **applicable(type(method), {**vars(settings), **changed}))


def named(federation: Federation) -> Federation:
    """With all clients' names in what is kept of it by whoever has some of them."""
    return dataclasses.replace(federation, about={**federation.about, "everyone": list(federation.ids)})


@contextlib.contextmanager
def spoiled_messages() -> Iterator[None]:
    """Some clients' messages are not finite: see :data:`SPOILED`."""
    real = Exchange.messages

    def messages(self: Exchange, chunk: Any) -> dict[str, dict[str, Tensor]]:
        by_group = real(self, chunk)
        names = sorted(chunk.federation.about.get("everyone", chunk.federation.ids))
        bad = [names[k] for k in SPOILED.get(chunk.round, ()) if k < len(names)]
        rows = [row for row, j in enumerate(chunk.clients) if chunk.federation.ids[j] in bad]
        for message in by_group.values():
            for name, value in message.items():
                message[name] = value = value.clone()  # zeros may be one number, seen as many
                if value.is_floating_point():
                    value[rows] = torch.nan
                elif value.dtype == torch.uint8:  # bytes of a compressed message: no number is finite
                    value[rows] = 255
        return by_group

    with mock.patch.object(Exchange, "messages", messages):
        yield


def keep(run: Run, path: Path, personal: State | None = None, copies: State | None = None) -> None:
    """What must agree, on disk; the clients' own values are the run's where no others are given."""
    own = run.personal if personal is None else personal
    parts = {"shared": run.shared, "personal": own, "copies": run.fitted.copies if copies is None else copies}
    save_file(
        {f"{part}/{k}": v.contiguous().clone() for part, values in parts.items() for k, v in values.items()},
        path.with_suffix(".safetensors"),
    )
    status = run.participation.to_numpy().tolist()
    path.with_suffix(".json").write_text(json.dumps({"rows": run.evaluations, "status": status}))


def kept(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`keep` has written."""
    return load_file(path.with_suffix(".safetensors")), json.loads(path.with_suffix(".json").read_text())


def agree(first: Path, other: Path, name: str, *, by_sums: bool = False, within: float = 1e-10) -> None:
    """Asserts that both fits are the same, up to rounding.

    Args:
        first, other: what :func:`keep` has written.
        name: of the case.
        by_sums: whether the other knows sums over its clients alone, and sends no message that is not finite.
        within: the largest difference.
    """
    (a, said_a), (b, said_b) = kept(first), kept(other)
    assert a.keys() == b.keys(), name
    for key, value in a.items():
        torch.testing.assert_close(b[key], value, rtol=within, atol=within, equal_nan=True, msg=f"{name}: {key}")
    assert said_a["status"] == said_b["status"], name
    assert len(said_a["rows"]) == len(said_b["rows"])
    for row, twin in zip(said_a["rows"], said_b["rows"], strict=True):
        assert row.keys() == twin.keys()
        for key in row.keys() - {"seconds"}:
            if name.endswith("energy") and key.startswith("gm_"):
                continue  # a new client of it starts from what chains are here
            if by_sums and key == "bytes":
                continue
            x, y = row[key], twin[key]
            near = 0.5 / HISTOGRAM if by_sums and "worst10" in key else 1e-7 if by_sums and "_cv" in key else 0.0
            if near and x is not None:
                assert y == pytest.approx(x, abs=near + 1e-9, nan_ok=True), (name, key)
            elif isinstance(x, float) and isinstance(y, float):
                torch.testing.assert_close(
                    torch.tensor(y), torch.tensor(x), rtol=1e-9, atol=1e-9, equal_nan=True, msg=f"{name}: {key}"
                )
            else:
                assert x == y, (name, key)
