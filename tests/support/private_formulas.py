r"""How often intervals of a gaussian mixed model with noise inside each client hold the truth: 10 sites x 200 patients.

    python tests/support/private_formulas.py --model slope --epsilon 4 --replicates 1000 --rows FOLDER
    python tests/support/private_formulas.py --rows FOLDER --table experiments/results/privacy/formulas.csv \
        --page docs/privacy-formulas.md

The first command goes on where it was stopped: a line for each replicate. Beside the noise-aware fit is the naive one:
the noisy sums, without negative eigenvalues, taken for the sums themselves.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.noise.accounting import noise_plan
from hierfl.inference.noise.sources import KeyedNoise, noisy
from hierfl.inference.options import Options
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.private.private_fit import mechanisms
from hierfl.models.mixed_effects.private.release import STATISTICS, packed_products, unpacked_products
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.models.mixed_effects.search.one_round import CrossProducts

SITES, PATIENTS, LEVEL = 10, 200, 0.9
#: replicates that the naive fit has, too
NAIVE = 250
WITH_SLOPE = "sbp ~ age + sex + (1 + age | site)"
FORMULAS = {"intercept": "sbp ~ age + sex + (1 | site)", "slope": WITH_SLOPE, "steep": WITH_SLOPE}
RANGES = "age 20 90; sbp 50 200"
#: the intercept is where age is 0: 22 below what it is at 55
TRUTH = {"Intercept": 100.0, "age": 0.4, "sex[m]": 4.0, "sd(residual)": 15.0}
#: around the table of the page
MARKS = ("<!-- coverage -->", "<!-- end -->")
#: of a binary response, :mod:`support.private_rounds`
OTHERS = {"Intercept": -2.65, "age": 0.03, "sex[m]": 0.5, "sd(Intercept)": 0.5}
SD = {"intercept": (5.0, 0.0), "slope": (5.0, 0.15), "steep": (5.0, 0.4)}


def table(model: str, seed: int, patients: int = PATIENTS) -> pd.DataFrame:
    """One replicate's rows."""
    rng, n = np.random.default_rng([seed, 50]), SITES * patients
    site = np.repeat(np.arange(SITES), patients)
    age = np.clip(rng.normal(55, 2, SITES)[site] + rng.normal(0, 12, n), 20, 90)
    male = rng.random(n) < 0.45
    own, slope = (rng.normal(0, 1, (2, SITES)) * np.array(SD[model])[:, None])[:, site]
    mean = 100 + 0.4 * age + 4 * male + own + slope * (age - 55)
    return pd.DataFrame(
        {
            "site": site.astype(str), "age": age, "sex": np.where(male, "m", "f"),
            "sbp": np.clip(mean + rng.normal(0, 15, n), 50, 200),
        }
    )  # fmt: skip


def number_of(model: str, epsilon: float, seed: int) -> int:
    """By which a replicate's rows, noise and draws are made: cells of the table have none in common."""
    return seed + 10_000 * (["binomial", *SD].index(model) + 10 * round(epsilon))


def truth(model: str) -> dict[str, float]:
    """Of the effects of a model."""
    if model not in SD:
        return OTHERS
    own, slope = SD[model]
    return {**TRUTH, "sd(Intercept)": float(np.hypot(own, 55 * slope)), **({"sd(age)": slope} if slope else {})}


class Study:
    """The model, its columns, and the two fits."""

    def __init__(self, model: str, epsilon: float) -> None:
        self.model, self.epsilon = model, epsilon
        federation, design = from_formula(table(model, 0), FORMULAS[model])
        self.options = Options(dp="site", epsilon=epsilon, dtype=torch.float64)
        aware = MixedEffects(design, ranges=RANGES)
        self.aware = aware.under_noise(self.options, federation)
        self.naive = copy.copy(self.aware)
        self.naive.__dict__.pop("likelihood", None)
        self.naive.private = None
        self.context = AggregationContext(
            num_clients=SITES, reported=torch.tensor(SITES), round=1, rule_state={}, seed=0, shared={},
            prior_gradient=None,
        )  # fmt: skip

    def sums(self, seed: int) -> torch.Tensor:
        """Noisy, (J, c + 1, c + 1)."""
        df, private = table(self.model, seed), self.aware.private
        assert private is not None
        columns = private.columns
        raw = np.column_stack([np.ones(len(df)), df.age, df.sex == "m", df.sbp])
        scaled = ((raw - columns.middle) / columns.half).clip(columns.least, 1.0)
        v = torch.from_numpy(scaled.reshape(SITES, PATIENTS, -1))
        multiplier = noise_plan(self.options.epsilon, self.options.delta, mechanisms())[STATISTICS]
        sent = [
            noisy(products, private.sensitivity, multiplier, KeyedNoise(seed, j), STATISTICS)
            for j, products in enumerate(packed_products(v))
        ]
        return unpacked_products(torch.stack(sent), v.shape[-1])

    def tables(self, seed: int, naive: bool = True) -> dict[str, pd.DataFrame]:
        """Effects of the fits of one replicate."""
        seed = number_of(self.model, self.epsilon, seed)
        sums = self.sums(seed)
        effects = {"aware": self._effects(self.aware, seed, *self._aware(sums))}
        return effects | ({"naive": self._effects(self.naive, seed, *self._naive(sums))} if naive else {})

    def _aware(self, sums: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
        return self.aware.exchange()["effects"], {"products": packed(sums)}

    def _naive(self, sums: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
        private, network = self.aware.private, self.aware.network
        assert private is not None
        columns = private.columns
        values, vectors = torch.linalg.eigh(sums)
        positive = vectors @ torch.diag_embed(values.clamp_min(1e-3)) @ vectors.mT
        turn = [
            columns.of_design(network.random, network.random_units),
            columns.of_design(network.fixed, network.fixed_units),
        ]
        turn = torch.block_diag(torch.cat(turn, 1), torch.tensor([[columns.half[-1]]]).double())
        gram, n = turn.mT @ positive @ turn, sums[:, 0, 0].clamp_min(8.0)
        up, across = torch.triu_indices(gram.shape[-1], gram.shape[-1])
        rows = torch.stack([n, torch.zeros_like(n)], -1)
        counts = torch.stack([n.new_tensor(float(SITES)), n.sum().round()])
        return CrossProducts(self.naive), {"gram": gram[:, up, across], "rows": rows, "counts": counts}

    def _effects(self, method: MixedEffects, seed: int, rule: Any, total: dict[str, torch.Tensor]) -> pd.DataFrame:
        shared = {k: v.double() for k, v in method.shared(InitialWeights.for_network(method.network, 0)).items()}
        shared = rule.update(shared, total, replace(self.context, rule_state={}, seed=seed))
        fitted: Any = SimpleNamespace(method=method, shared=shared, federation=SimpleNamespace(about={}))
        return effects_table(fitted, LEVEL)[0]


def packed(sums: torch.Tensor) -> torch.Tensor:
    """As they are sent."""
    up, across = torch.triu_indices(sums.shape[-1], sums.shape[-1])
    return sums[:, up, across] * torch.where(up == across, 1.0, 2**0.5)


def run(model: str, epsilon: float, replicates: int, folder: Path) -> None:
    """Replicates that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path, study = folder / f"{model}-{epsilon:g}.jsonl", Study(model, epsilon)
    done = {json.loads(line)["seed"] for line in path.read_text().splitlines()} if path.exists() else set()
    with torch.no_grad(), open(path, "a") as file:
        for seed in range(replicates):
            if seed in done:
                continue
            line: dict[str, Any] = {"seed": seed}
            for kind, effects in study.tables(seed, seed < NAIVE).items():
                wanted = effects[effects.effect.isin(truth(model))]
                line[kind] = {
                    row.effect: [row.estimate, row.standard_error, row.lower, row.upper] for row in wanted.itertuples()
                }
            file.write(json.dumps(line) + "\n")
            file.flush()


def summarise(folder: Path, path: Path) -> None:
    """One line for each model, epsilon, kind and effect."""
    records = []
    for file in sorted(folder.glob("*.jsonl")):
        model, epsilon = file.stem.rsplit("-", 1)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for kind in ("aware", "naive"):
            for effect, value in truth(model).items():
                rows = np.array([line[kind][effect] for line in lines if kind in line], dtype=float)
                inside = (rows[:, 2] <= value) & (value <= rows[:, 3])
                records.append(
                    {
                        "model": model, "epsilon": float(epsilon), "kind": kind, "effect": effect, "truth": value,
                        "replicates": len(rows), "coverage": inside.mean(),
                        "errors_from_90": (inside.mean() - LEVEL) / np.sqrt(LEVEL * (1 - LEVEL) / len(rows)),
                        "bias": np.median(rows[:, 0]) - value if effect.startswith("sd") else rows[:, 0].mean() - value,
                        "sd": rows[:, 0].std(), "width": np.median(rows[:, 3] - rows[:, 2]),
                    }
                )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in records)


def page(path: Path, docs: Path) -> None:
    """The table of coverage in docs/privacy-formulas.md, from the csv."""
    rows = pd.read_csv(path)
    lines = [
        "| model | epsilon | replicates | effect | noise-aware | from 90 | naive | width | naive width |",
        "|---" * 9 + "|",
    ]
    for key, cell in rows.groupby(["model", "epsilon", "effect"], sort=False):
        both = cell.set_index("kind")
        aware, naive = both.loc["aware"], both.loc["naive"]
        widths = f"{aware.width:.3g} | {naive.width:.3g}"
        away = f"{aware.errors_from_90:+.1f}"
        away = f"**{away}**" if abs(aware.errors_from_90) > 3 else away
        shares = f"{100 * aware.coverage:.1f} | {away} | {100 * naive.coverage:.1f}"
        lines.append(f"| {key[0]} | {key[1]:g} | {aware.replicates} | {key[2]} | {shares} | {widths} |")
    before, _, rest = docs.read_text().partition(MARKS[0])
    docs.write_text(before + MARKS[0] + "\n\n" + "\n".join(lines) + "\n\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(FORMULAS))
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.table:
        summarise(args.rows, args.table)
        if args.page:
            page(args.table, args.page)
    else:
        run(args.model, args.epsilon, args.replicates, args.rows)


if __name__ == "__main__":
    main()
