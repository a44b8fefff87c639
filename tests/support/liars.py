"""One liar among the clients of a fit, and federations in which it lies; :mod:`support.liar_runs` has the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch

from hierfl import Federation
from hierfl.data.datasets.registry import load
from hierfl.data.formula.federate import from_formula
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.inference.server.receiver import Receiver
from hierfl.models import FedAvg, MixedEffects, PFedVEM
from hierfl.nn.networks.build import architecture

Messages = dict[str, dict[str, torch.Tensor]]
Lie = Callable[[Messages], Messages]
LIAR, CLIENTS = 3, 10
#: keys of messages that are weights, counts, or say how many rows there are
WEIGHTS = ("weight", "tau", "counts")
#: class, settings, and rounds
SETTINGS: Mapping[str, tuple[Any, dict[str, Any], int]] = {
    "fedavg": (FedAvg, {"lr": 0.2, "batch": 40, "epochs": 2}, 10),
    "pfedvem": (PFedVEM, {"head_lr": 0.01, "base_lr": 0.01, "base_batch": 20, "sigma_0": 1.0}, 8),
}


def times(factor: float, *, weights: bool = False) -> Lie:
    """All values times a number, or with ``weights`` all weights too, so that values stay."""
    return lambda sent: {
        group: {k: v * factor if weights or k not in WEIGHTS else v for k, v in message.items()}
        for group, message in sent.items()
    }


def again() -> Lie:
    """Its first message in every round."""
    first: list[Messages] = []

    def lie(sent: Messages) -> Messages:
        first.append({group: {k: v.clone() for k, v in message.items()} for group, message in sent.items()})
        return first[0]

    return lie


def walking(size: float, family: str = "gaussian") -> Lie:
    """Of ``y ~ x``: rows of y + c x, c another in each round; to and fro, or of a size below zero further each time."""
    rounds = [0]

    def lie(sent: Messages) -> Messages:
        rounds[0] += 1
        c = size * (rounds[0] if size < 0 else (-1) ** rounds[0])
        altered = {group: {k: v.clone() for k, v in message.items()} for group, message in sent.items()}
        for message in altered.values():
            if family != "gaussian":
                message["slope"] += c * message["curvature"][..., -1]
            for key in ("cross", "cross_1", "cross_2") if family == "gaussian" else ():
                v = message[key]  # 1'1, 1'x, 1'y, x'x, x'y, y'y
                v[..., 5] += 2 * c * v[..., 4] + c * c * v[..., 3]
                v[..., 2] += c * v[..., 1]
                v[..., 4] += c * v[..., 3]
        return altered

    return lie


def spread(df: pd.DataFrame, sd: float, site: str = f"s{LIAR:02d}") -> pd.DataFrame:
    """A site's responses have noise more, of which its intercept and slope know nothing."""
    df, own = df.copy(), df.site == site
    x = np.column_stack([np.ones(int(own.sum())), df.x[own]])
    noise = np.random.default_rng(1).normal(size=len(x))
    noise -= x @ np.linalg.lstsq(x, noise, rcond=None)[0]
    df.loc[own, "y"] += sd * noise / noise.std()
    return df


LIES: Mapping[str, Callable[[], Lie]] = {
    "x -10": lambda: times(-10.0),
    "x 1e5": lambda: times(1e5),
    "n_j and tau x 1e9": lambda: times(1e9, weights=True),
    "sign": lambda: times(-1.0),
    "stale replay": again,
}


@contextmanager
def lying(lie: Lie | None, liar: int = LIAR) -> Iterator[None]:
    """One client's messages are changed before they are received."""
    add = Receiver.add

    def changed(receiver: Receiver, messages: Any, clients: Sequence[int], healthy: Any = None) -> Any:
        if lie is not None and liar in clients:
            at = list(clients).index(liar)
            own = lie({g: {k: v[at : at + 1] for k, v in m.items()} for g, m in messages.items()})
            messages = {
                g: {k: torch.cat([v[:at], own[g][k], v[at + 1 :]]) for k, v in m.items()} for g, m in messages.items()
            }
        return add(receiver, messages, clients, healthy)

    with mock.patch.object(Receiver, "add", changed):
        yield


def names_of(run: Run) -> str:
    """Who is named, by place."""
    return " ".join(str(row.client) for row in run.watched.named) if run.watched else ""


# -- networks ---------------------------------------------------------------------------------------------------------


def digits(seed: int, split: str = "dirichlet:0.5", clients: int = CLIENTS) -> Federation:
    return Federation.from_pool(load("digits", Path("data"), seed), clients, split, seed=seed)


def flipped(federation: Federation, liar: int = LIAR) -> Federation:
    """One client's training labels are others: C - 1 less the label."""
    y, own = federation.y.clone(), federation.train[liar]
    y[own] = federation.classes - 1 - y[own]
    return replace(federation, y=y)


def twin(federation: Federation, liar: int = LIAR) -> Federation:
    """One client has the training rows of another, whose number is closest to its own."""
    train = list(federation.train)
    others = [j for j in range(len(train)) if j != liar]
    train[liar] = train[min(others, key=lambda j: abs(len(train[j]) - len(train[liar])))]
    return replace(federation, train=type(federation.train)(train))


def network_run(name: str, federation: Federation, rule: str, lie: Lie | None, seed: int, rounds: int = 0) -> Run:
    cls, settings, usual = SETTINGS[name]
    rounds = rounds or usual
    method = cls(architecture("mlp:100", federation, latent=cls.latent), **settings)
    with lying(lie):
        options = Options(rounds=rounds, seed=seed, robust=rule, evaluate_every=rounds, splits=("test",), draws=1)
        return Fit(method, federation, options).run(progress=False)


# -- mixed models -----------------------------------------------------------------------------------------------------


def table(seed: int, family: str, sites: int = CLIENTS, *, rows: tuple[int, int] = (40, 160), slopes: float = 0.0,
          outlies: float = 0.0) -> pd.DataFrame:  # fmt: skip
    """Patients of some sites: y, x and site.

    Args:
        seed: of the numbers.
        family: gaussian or binomial.
        sites: how many.
        rows: of a site, at least and at most.
        slopes: standard deviation of the sites' slopes, which the model does not know.
        outlies: what the first site's intercept has more, in standard deviations.
    """
    rng = np.random.default_rng([seed, len(family), sites])
    sizes = rng.integers(*rows, sites)
    who = np.repeat(np.arange(sites), sizes)
    b, slope = 0.5 * rng.normal(size=sites), 0.543 + slopes * rng.normal(size=sites)
    b[0] += 0.5 * outlies
    x = rng.normal(size=len(who)) + 0.3 * rng.normal(size=sites)[who]
    eta = 0.2 + slope[who] * x + b[who]
    y = eta + rng.normal(size=len(who)) if family == "gaussian" else rng.random(len(who)) < 1 / (1 + np.exp(-eta))
    return pd.DataFrame({"y": y.astype(float), "x": x, "site": [f"s{j:02d}" for j in who]})


def invented(df: pd.DataFrame, rows: int, family: str, seed: int, site: str = f"s{LIAR:02d}") -> pd.DataFrame:
    """A site's rows are replaced by plausible ones, of which x does the opposite, and more."""
    rng = np.random.default_rng([seed, rows])
    x = rng.normal(size=rows)
    eta = 0.2 - 2.5 * x
    y = eta + rng.normal(size=rows) if family == "gaussian" else (rng.random(rows) < 1 / (1 + np.exp(-eta)))
    return pd.concat([df[df.site != site], pd.DataFrame({"y": np.asarray(y, float), "x": x, "site": site})])


def mixed_run(df: pd.DataFrame, family: str, rule: str, lie: Lie | None, *, rounds: int = 60, **how: Any) -> Run:
    federation, design = from_formula(df, "y ~ x + (1 | site)", family=family)
    method = MixedEffects(design, draws=0)
    with lying(lie):
        options = Options(
            rounds=rounds, seed=0, robust=rule, dtype=torch.float64, splits=("train",), evaluate_every=60
        )  # fmt: skip
        return Fit(method, federation, options).run(progress=False, **how)


def coefficient(run: Run) -> tuple[float, float]:
    """Of x: the estimate and its standard error."""
    effects, _ = run.fitted.method.population_summary(run.fitted)
    row = effects[effects["effect"] == "x"].iloc[0]
    return float(row["estimate"]), float(row["standard_error"])
