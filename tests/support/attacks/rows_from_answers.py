"""A malicious server computes a site's rows from what it answers at points of the server's choice.

The site has n rows of a mixed model ``y ~ x + sex + (1 | site)``: x has one digit after the point (20.0 to 99.0), sex
is 0 or 1. The attacker knows n and that, and asks at points within the bounds of a broadcast. Slopes and curvatures are
sums over the rows of known functions of x and sex, but for X'y, three numbers. The attack finds non-negative counts of
all 1,582 possible rows (least squares), places n rows by them, and improves their x by Levenberg and Marquardt's method
from several starts. A row is recovered where x is right to the digit and sex is right. What a server without any answer
gets right by placing rows as the population has them is the guess.
The curve is in rows_curve.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from support.sites import HANDSHAKE, own_data

from hierfl.data.formula.federate import from_formula
from hierfl.inference.engines.remote.bounds import Bounds
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.inference.options import Options
from hierfl.models import MixedEffects

Array = NDArray[np.float64]
GRID = np.round(np.arange(20, 99.05, 0.1), 1)
#: what the attacker asks for, of the bound
STEEP = 0.98
#: of Levenberg and Marquardt's method: damping, starts and steps
FIRST, STARTS, STEPS = 1e-3, 4, 150
#: more rows have one start: each takes minutes
MANY = 100


class Rows(NamedTuple):
    """A site's.

    Attributes:
        x, sex, y: (n,).
    """

    x: Array
    sex: NDArray[np.int64]
    y: NDArray[np.int64]


def rows(family: str, n: int, seed: int) -> Rows:
    """Patients of a site."""
    rng = np.random.default_rng([seed, n])
    x, sex = rng.normal(60, 12, n).clip(20, 99).round(1), rng.integers(0, 2, n)
    eta = 0.04 * (x - 60) + 0.5 * sex - 0.2
    y = rng.poisson(np.exp(eta)) if family == "poisson" else rng.binomial(1, 1 / (1 + np.exp(-eta)))
    return Rows(x, sex, y)


class Victim:
    """A site that answers whoever asks within the bounds.

    Args:
        family: of the response.
        own: its rows.
        folder: the site's own.

    Attributes:
        asked: rounds that were answered.
    """

    def __init__(self, family: str, own: Rows, folder: Path) -> None:
        other = rows(family, 200, 99)
        parts = [pd.DataFrame({**part._asdict(), "site": name}) for name, part in (("south", own), ("west", other))]
        federation, design = from_formula(pd.concat(parts), "y ~ x + sex + (1 | site)", family=family)
        self.method = MixedEffects(design, draws=0)
        client = federation.ids.index("south")
        options = Options(rounds=1000, dtype=torch.float64, splits=())
        self.site = Site(self.method, own_data(federation, client), options, folder, HANDSHAKE)
        self.bounds = Bounds(self.site)
        units = design.fixed_units
        self.offset = design.offset
        self.centre, self.scale = np.array(units.centre), np.array(units.scale)
        self.asked = 0

    def answer(self, beta: Array, round: int | None = None) -> dict[str, Array]:
        """Slope (4,) and curvature (4, 4) in (root, beta), coefficients of columns in the design's units.

        Raises:
            OutOfBounds: for steep ones.
        """
        shared = {k: v.clone() for k, v in self.site.shared.items()}
        shared |= {"effects.phase": torch.zeros((), dtype=torch.float64)}
        shared["effects.at"] = torch.tensor([0.0, *beta], dtype=torch.float64)
        number = self.asked + 2 if round is None else round
        head = {"kind": "round", "round": number, "client": self.site.client, "counted": 0, "reports": True}
        self.bounds.check(head, shared)
        self.asked += 1
        reply, sent = decode(self.site.answer(encode({**head, "handshake": HANDSHAKE.table()}, shared)))
        if "error" in reply:
            raise AssertionError(reply["error"])
        return {k.partition("|")[2]: v.numpy() for k, v in sent.items()}


class Answers(NamedTuple):
    """What the attacker has.

    Attributes:
        points: intercept (with the design's offset) and coefficient of x where it has asked, (N, 2).
        numbers: slopes (3) and curvatures (w, wx, wxx, ws, wxs) of each, (N, 8).
    """

    points: Array
    numbers: Array


def asked(victim: Victim, points: Array) -> Answers:
    """Asks a site at points (N, 2)."""
    derivatives = []
    for intercept, steep in points:
        reply = victim.answer(np.array([intercept - victim.offset, steep, 0.0]))
        slope, bend = reply["slope"][1:], reply["curvature"][1:, 1:]
        derivatives.append([*-slope, bend[0, 0], bend[0, 1], bend[1, 1], bend[0, 2], bend[1, 2]])
    return Answers(points, np.array(derivatives))


def columns(family: str, points: Array, z: Array, s: Array) -> Array:
    """What rows with x at z (m,) and sex at s (m,), in units, add to the numbers of all points, (8 N, m)."""
    eta = points[:, :1] + points[:, 1:] * z
    mean = np.exp(eta) if family == "poisson" else 1 / (1 + np.exp(-eta))
    w = mean if family == "poisson" else mean * (1 - mean)
    parts = [mean, mean * z, mean * s, w, w * z, w * z * z, w * s, w * z * s]
    return np.stack(parts, 1).reshape(-1, len(z))


def steps(family: str, points: Array, z: Array, s: Array) -> Array:
    """Derivatives of :func:`columns` in z."""
    return (columns(family, points, z + 1e-6, s) - columns(family, points, z - 1e-6, s)) / 2e-6


def computed(family: str, victim: Victim, answers: Answers, n: int, seed: int = 0) -> list[tuple[float, int]]:
    """The attack: n rows (x, sex)."""
    zs = (GRID - victim.centre[1]) / victim.scale[1]
    levels = (np.array([0.0, 1.0]) - victim.centre[2]) / victim.scale[2]
    z, s = np.tile(zs, 2), np.repeat(levels, len(zs))
    total = answers.numbers.reshape(-1)
    # X'y is not known: slopes less those of the first point
    keep = np.ones(total.shape, bool)
    keep[:3] = False

    def seen(values: Array) -> Array:
        by_point = values.reshape(len(answers.points), 8, *values.shape[1:])
        by_point = np.concatenate([by_point[:, :3] - by_point[:1, :3], by_point[:, 3:]], 1)
        return by_point.reshape(values.shape)[keep]

    y, a = seen(total), seen(columns(family, answers.points, z, s))
    weight = 1 / np.maximum(np.abs(a).mean(1) * n, 1e-300)
    a, y = np.vstack([a * weight[:, None], np.ones(len(z)) / n]), np.append(y * weight, 1.0)
    counts, _ = nnls(a, y, maxiter=30000)
    ones = round(float(counts[len(zs) :].sum() / max(counts.sum(), 1e-300)) * n)
    s_rows = np.repeat(levels, [n - ones, ones])
    start = np.concatenate([
        np.interp((np.arange(m) + 0.5) / max(m, 1), np.cumsum(c) / max(c.sum(), 1e-300), zs)
        for m, c in ((n - ones, counts[: len(zs)]), (ones, counts[len(zs) :]))
    ])  # fmt: skip
    rng, best = np.random.default_rng(seed), (np.inf, start)
    for trial in range(STARTS if n <= MANY else 1):
        solution = fitted(
            start + 0.03 * trial * rng.normal(size=n),
            lambda z: (seen(columns(family, answers.points, z, s_rows).sum(1)) * weight) - y[:-1],
            lambda z: seen(steps(family, answers.points, z, s_rows)) * weight[:, None],
            (zs[0], zs[-1]),
        )
        best = min(best, solution, key=lambda candidate: candidate[0])
        if best[0] < 1e-26:
            break
    x = np.round(best[1] * victim.scale[1] + victim.centre[1], 1)
    return list(zip(x.tolist(), (s_rows > levels.mean()).astype(int).tolist(), strict=True))


def fitted(
    z: Array, residuals: Callable[[Array], Array], jacobian: Callable[[Array], Array], ends: tuple[float, float]
) -> tuple[float, Array]:
    """Levenberg and Marquardt's method: the sum of squares, and where."""
    damp, r = FIRST, residuals(z)
    height = float(r @ r)
    for _ in range(STEPS):
        j = jacobian(z)
        scale = np.sqrt((j * j).sum(0)) + 1e-300
        u, d, vt = np.linalg.svd(j / scale, full_matrices=False)
        step = np.clip(-(vt.T @ (d / (d * d + damp**2) * (u.T @ r))) / scale, -0.3, 0.3)
        near = np.clip(z + step, *ends)
        r_near = residuals(near)
        lower = float(r_near @ r_near)
        if lower < height:
            z, r, height, damp = near, r_near, lower, max(damp / 3, 1e-15)
        else:
            damp *= 4
        if damp > 1e3 or height < 1e-28:
            break
    return height, z


def recovered(solution: list[tuple[float, int]], own: Rows, some: NDArray[np.bool_] | None = None) -> float:
    """The share of rows, or of some, that are right."""
    truth = Counter(zip(own.x.tolist(), own.sex.tolist(), strict=True))
    right = Counter(solution) & truth
    if some is None:
        return sum(right.values()) / len(own.x)
    return sum(right[row] > 0 for row in zip(own.x[some].tolist(), own.sex[some].tolist(), strict=True)) / some.sum()


def guess(n: int) -> list[tuple[float, int]]:
    """Rows as the population has them."""
    many = rows("binomial", 20000, 1).x
    x = np.quantile(many, (np.arange((n + 1) // 2) + 0.5) / ((n + 1) // 2)).round(1)
    return [*((float(v), 0) for v in x), *((float(v), 1) for v in x)][:n]


def chosen(family: str, victim: Victim, own: Rows, number: int, most: float) -> Array:
    """The attacker's points (N, 2): as steep as the bound allows, at places all over the rows."""
    spread = ((own.x - victim.centre[1]) / victim.scale[1]).std()
    steep = STEEP * most / spread
    if family == "poisson":
        along = np.cos(np.pi * (np.arange(number) + 0.5) / number)
        return np.stack([0 * along, steep * along], 1)
    at = np.linspace(-2.6, 2.6, number) if number > 1 else np.zeros(1)
    return np.stack([-steep * at, np.full(number, steep)], 1)


def attacked(family: str, n: int, number: int, seed: int, most: float) -> dict[str, object]:
    """A site is attacked."""
    own = rows(family, n, seed)
    with TemporaryDirectory() as folder:
        victim = Victim(family, own, Path(folder))
        solution = computed(family, victim, asked(victim, chosen(family, victim, own, number, most)), n, seed)
    return {
        "family": family, "n": n, "points": number, "most": most, "seed": seed, "recovered": recovered(solution, own),
        "guess": recovered(guess(n), own), "ends": recovered(solution, own, ends_of(own)),
    }  # fmt: skip


def ends_of(own: Rows) -> NDArray[np.bool_]:
    """The three smallest and largest x."""
    order = np.argsort(own.x)
    return np.isin(np.arange(len(order)), [*order[:3], *order[-3:]])
