"""How many points an honest fit of a mixed model asks about, and how large its numbers are, for each family.

    python tests/support/honest_points.py OUT.csv SECONDS [FAMILY ...]
    python tests/support/honest_points.py OUT.csv summary

Tables have 4 or 10 sites of 20 to 200 rows each, or 30 of 20 to 80. Models have random intercepts, slopes, groups
inside the sites or groups of sites. Covariates have ordinary effects, strong ones, or separate the outcomes of a binary
response. OUT.csv has a row for every fit; fits that are there are not made again. It ends after so many seconds of CPU
time. ``summary`` writes experiments/federate/guard/budgets.toml, from which the default budgets follow, and prints the
largest numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.method.capabilities import evaluated_points
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.search.ranges import SiteRanges
from hierfl.models.mixed_effects.search.requests import Phase
from hierfl.responses.registry import RESPONSES

BUDGETS = Path(__file__).parents[2] / "experiments" / "federate" / "guard" / "budgets.toml"
TERMS = ("(1 | site)", "(1 + x | site)", "(1 | site/patient)", "(1 | region/site)")
#: at which a group's one effect is integrated out
NODES = 9
BINOMIAL = tuple(name for name in RESPONSES if "binomial" in name and "negative" not in name)
COLUMNS = ["family", "kind", "terms", "sites", "draws", "seed"]


def table(family: str, kind: str, sites: int, seed: int) -> pd.DataFrame:
    """Columns y, x, g, site, patient, region."""
    rng = np.random.default_rng([seed, sites, zlib.crc32(f"{family} {kind}".encode())])
    rows = np.exp(rng.uniform(np.log(20), np.log(200 if sites < 30 else 80), sites)).astype(int)
    site = np.repeat(np.arange(sites), rows)
    n = len(site)
    x, g = rng.normal(50, 10, n).round(1), rng.choice(list("abc"), n)
    if kind == "quasi":  # a rare level whose outcomes are all 1
        g = np.where(rng.random(n) < 0.03, "c", np.where(g == "c", "a", g))
    patient, region = rng.integers(0, 8, n), site % 3
    slope = 0.04 if kind == "plain" else 0.25
    eta = -0.2 + slope * (x - 50) + 0.5 * (g == "b")
    eta = eta + rng.normal(0, 0.6, sites)[site] + rng.normal(0, 0.02, sites)[site] * (x - 50)
    eta = eta + rng.normal(0, 0.4, (sites, 8))[site, patient] + rng.normal(0, 0.4, 3)[region]
    if kind != "plain" and family not in ("ordinal", "gaussian", "student-t", "lognormal", "beta", *BINOMIAL):
        eta = eta.clip(-3, 3)  # means up to 20
    y = outcomes(family, eta, rng)
    if kind == "separated":
        y = (x > 50).astype(int)
    if kind == "quasi":
        y = np.where(g == "c", 1, y)
    columns = {"y": y, "x": x, "g": g, "region": region.astype(str), "patient": patient.astype(str)}
    frame = pd.DataFrame({**columns, "site": [f"s{j}" for j in site]})
    if family == "beta-binomial":
        frame["size"] = 10
    return frame


def outcomes(family: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Responses with these linear predictors."""
    n, p, mean = len(eta), 1 / (1 + np.exp(-eta)), np.exp(eta.clip(-5, 5))
    made: dict[str, Any] = {
        "gaussian": lambda: eta + rng.normal(size=n),
        "student-t": lambda: eta + rng.standard_t(4, n),
        "lognormal": lambda: np.exp(eta + rng.normal(size=n)),
        "binomial": lambda: rng.binomial(1, p),
        "binomial-probit": lambda: rng.binomial(1, [NormalDist().cdf(score) for score in eta]),
        "binomial-cloglog": lambda: rng.binomial(1, -np.expm1(-mean)),
        "beta": lambda: rng.beta(4 * p + 0.01, 4 - 4 * p + 0.01).clip(1e-9, 1 - 1e-9),
        "beta-binomial": lambda: rng.binomial(10, rng.beta(4 * p + 0.01, 4 - 4 * p + 0.01)),
        "poisson": lambda: rng.poisson(mean),
        "negative-binomial": lambda: rng.poisson(mean * rng.gamma(2, 0.5, n)),
        "zero-inflated-poisson": lambda: rng.poisson(mean) * rng.binomial(1, 0.7, n),
        "nbinom1": lambda: rng.poisson(rng.gamma(mean, 1.0)),
        "zero-inflated-negative-binomial": lambda: rng.poisson(mean * rng.gamma(2, 0.5, n)) * rng.binomial(1, 0.7, n),
        "hurdle-poisson": lambda: np.where(rng.random(n) < 0.3, 0, np.maximum(rng.poisson(mean), 1)),
        "truncated-poisson": lambda: above_zero(lambda: rng.poisson(mean)),
        "truncated-negative-binomial": lambda: above_zero(lambda: rng.poisson(mean * rng.gamma(2, 0.5, n))),
        "hurdle-negative-binomial": lambda: (
            above_zero(lambda: rng.poisson(mean * rng.gamma(2, 0.5, n))) * rng.binomial(1, 0.7, n)
        ),
        "generalised-poisson": lambda: rng.poisson(rng.gamma(mean, 1.0)),
        "gamma": lambda: mean * rng.gamma(3, 1 / 3, n) + 1e-6,
        "exponential": lambda: mean * rng.exponential(size=n) + 1e-6,
        "cox": lambda: mean * rng.weibull(1.5, n) + 1e-6,
        "weibull": lambda: mean * rng.weibull(1.5, n) + 1e-6,
        "ordinal": lambda: np.digitize(eta + rng.logistic(size=n), [-1, 0, 1]),
    }
    return made[family]()


def above_zero(drawn: Callable[[], np.ndarray]) -> np.ndarray:
    """Counts that are drawn again where they are zero; 1 where they are zero a thousand times."""
    y = drawn()
    for _ in range(1000):
        y = np.where(y == 0, drawn(), y)
    return np.maximum(y, 1)


def cases(families: list[str]) -> Iterator[dict[str, Any]]:
    """Fits, those first whose kind has none yet."""
    for seed in itertools.count():
        for terms, sites, family in itertools.product(TERMS, (10, 4, 30), families):
            if sites > 4 and (terms == TERMS[2] or family == "beta-binomial"):
                continue  # they take minutes each
            kinds = ["plain", "strong"] + ["quasi", "separated"] * (family == "binomial")
            kind = kinds[(seed + TERMS.index(terms)) % len(kinds)]
            draws = 1000 if (seed + sites // 10 + TERMS.index(terms)) % 2 else 0
            yield {"family": family, "kind": kind, "terms": terms, "sites": sites, "draws": draws, "seed": seed}


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """One fit: rounds with other values than all before, points, and the largest numbers asked about."""
    frame = table(case["family"], case["kind"], case["sites"], case["seed"])
    left = "p(y, size)" if case["family"] == "beta-binomial" else "y"
    federation, design = from_formula(frame, f"{left} ~ x + g + {case['terms']}", family=case["family"], client="site")
    method = MixedEffects(design, draws=case["draws"])
    seen: set[str] = set()
    figures = {"derivatives": 0, "explored": 0, "rounds": 0, "done": 0}
    largest: dict[str, float] = {}
    plain = PlateEngine.round
    sites = [SiteRanges(method, federation.x[rows].double()) for rows in federation.indices("train")]
    ranges = sites if method.likelihood.searches_beta else []

    def counted(engine: PlateEngine, broadcast: Broadcast, plan: Any) -> Any:
        shared = broadcast.shared
        raw = b"".join(v.detach().double().numpy().tobytes() for _, v in sorted(shared.items()))
        if (digest := hashlib.sha256(raw).hexdigest()) not in seen:
            seen.add(digest)
            points = evaluated_points(method, shared)
            explores = int(shared["effects.phase"]) == Phase.EXPLORE
            figures["explored" if explores else "derivatives"] += points
            figures["rounds"] += 1
            note(ranges, shared, explores, largest)
        return plain(engine, broadcast, plan)

    PlateEngine.round = counted  # type: ignore[method-assign]
    try:
        run = fit(
            method, federation, progress=False, rounds=120, evaluate_every=120, dtype=torch.float64, splits=(), draws=2
        )
    finally:
        PlateEngine.round = plain  # type: ignore[method-assign]
    figures["done"] = int(method.finished(run.shared))
    return {**figures, **largest}


def note(ranges: list[SiteRanges], shared: dict[str, torch.Tensor], explores: bool, largest: dict[str, float]) -> None:
    """Keeps the largest extents so far, of points with derivatives and of explored ones, over all sites."""
    for site in ranges:
        for extents in site.explored(shared) if explores else site.asked(shared):
            for kind, number in extents._asdict().items():
                key = f"{kind}.{'many' if explores else 'one'}"
                largest[key] = max(largest.get(key, 0.0), number)


def summary(path: Path) -> None:
    """Writes the budgets, and prints the largest numbers."""
    rows = pd.read_csv(path)
    rows = rows[rows["done"] == 1]
    lines = [
        "# Points that honest fits ask about, for each family: the largest and the 95 % number of points with",
        "# derivatives and of explored points (draws > 0), of so many fits. Of few fits the largest is not well known:",
        "# points and explored are at least what 95 % of the fits of all families but gaussian need. Fits with",
        "# groups of sites have their own numbers: nodes count. Written by tests/support/honest_points.py",
    ]
    fits = rows[rows["kind"] != "separated"]  # they have no estimates, and sites do not answer
    for family in RESPONSES:
        for nodes in (False, True):
            alike = fits[(fits["terms"] == TERMS[3]) == nodes]
            lines += section(family, nodes, alike)
    BUDGETS.write_text("\n".join(lines) + "\n")
    numbers = [c for c in rows if c.endswith((".one", ".many"))]
    with pd.option_context("display.width", 200, "display.max_columns", 20):
        print(rows.groupby(["family", "kind"])[["derivatives", "explored", *numbers]].max().round(1))


def section(family: str, nodes: bool, fits: pd.DataFrame) -> list[str]:
    """A family's part of the file."""
    some = fits[fits["family"] == family]
    others = some if family == "gaussian" else fits[fits["family"] != "gaussian"]
    about: dict[str, float] = {"fits": len(some)}
    for name, column in (("points", "derivatives"), ("explored", "explored")):
        own, all_of = (part.loc[part[column] > 0, column] for part in (some, others))
        most = max(own.max() if len(own) else 0, all_of.quantile(0.95))
        about |= {f"{name}_95": own.quantile(0.95), name: most}
    about |= {"nodes": NODES} if nodes else {}
    lines = ["", f"[{family}{'.regions' if nodes else ''}]"]
    return [*lines, *(f"{k} = {int(np.ceil(v))}" for k, v in about.items() if v == v)]


def main(path: Path, limit: float, families: list[str]) -> None:
    """Makes fits until the time is used up."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    rows = [row for row in rows if row["done"] >= 0]
    finished = {tuple(row[c] for c in COLUMNS) for row in rows}
    for case in cases(families):
        if time.process_time() > limit:
            return
        if tuple(case.values()) in finished:
            continue
        begin = time.process_time()
        try:
            figures = measured(case)
        except Exception as error:  # a table that cannot be fitted says nothing of points
            figures = {"done": -1, "error": f"{type(error).__name__}: {error}"[:80]}
        rows.append({**case, **figures, "seconds": round(time.process_time() - begin, 1)})
        pd.DataFrame(rows).to_csv(path, index=False)


if __name__ == "__main__":
    if sys.argv[2] == "summary":
        summary(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:] or list(RESPONSES))
