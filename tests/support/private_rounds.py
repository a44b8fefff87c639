"""The same of a binary response, 10 sites x 200 patients: see :mod:`support.private_formulas`.

    python tests/support/private_rounds.py --model binomial --epsilon 4 --replicates 1000 --rows FOLDER

The naive fit takes the last round's noisy scores and information, without negative eigenvalues, for true ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.with_noise import privacy_of
from hierfl.inference.options import Options
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.private.working_release import message_parts
from hierfl.models.mixed_effects.report.summary import effects_table

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.private_formulas import number_of

SITES, PATIENTS, LEVEL = 10, 200, 0.9
#: replicates that the naive fit has, too
NAIVE = 250
FORMULAS = {"binomial": "y ~ age + sex + (1 | site)"}
RANGES = "age 20 90"
TRUTH = {"Intercept": -2.65, "age": 0.03, "sex[m]": 0.5, "sd(Intercept)": 0.5}


def table(seed: int, patients: int = PATIENTS) -> pd.DataFrame:
    """One replicate's rows."""
    rng, n = np.random.default_rng([seed, 51]), SITES * patients
    site = np.repeat(np.arange(SITES), patients)
    age = np.clip(rng.normal(55, 2, SITES)[site] + rng.normal(0, 12, n), 20, 90)
    male = rng.random(n) < 0.45
    eta = -2.65 + 0.03 * age + 0.5 * male + rng.normal(0, 0.5, SITES)[site]
    y = rng.random(n) < 1 / (1 + np.exp(-eta))
    return pd.DataFrame({"site": site.astype(str), "age": age, "sex": np.where(male, "m", "f"), "y": y.astype(int)})


def tables(model: str, epsilon: float, seed: int, naive: bool = True, draws: int = 1000) -> dict[str, pd.DataFrame]:
    """Effects of the noise-aware and of the naive fit of one replicate."""
    federation, design = from_formula(table(seed), FORMULAS[model], family=model)
    options = Options(dp="site", epsilon=epsilon, seed=seed, dtype=torch.float64)
    method = MixedEffects(design, ranges=RANGES, draws=draws).under_noise(options, federation)
    federation, begin, memory = federation.to("cpu", torch.float64), InitialWeights.for_network(method.network, 0), {}
    private, rule, likelihood = method.private, method.exchange()["effects"], method.likelihood
    assert private is not None
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    own = {k: v.double().expand(SITES, 1, *v.shape) for k, v in method.personal(begin).items()}
    effects: dict[str, pd.DataFrame] = {}
    for number in range(1, len(private.sds) + 1):
        privacy = privacy_of(method, options)
        chunk = ClientChunk(method, federation, range(SITES), number, 0, shared, own, privacy=privacy)
        chunk = likelihood.steps()[0].run(chunk, 0)
        own, total = chunk.values, rule.message([], chunk)
        context = AggregationContext(
            num_clients=SITES, reported=torch.tensor(SITES), round=number, rule_state=memory, seed=seed, shared={},
            prior_gradient=None,
        )  # fmt: skip
        points, before = own["point"].squeeze(1), shared
        shared = rule.update(shared, total, context)
    kept = {"aware": shared}
    if naive:
        kept["naive"] = naive_values(method, total, points, before, context)
    for kind, values in kept.items():
        fitted: Any = SimpleNamespace(method=method, shared=values, federation=SimpleNamespace(about={}))
        effects[kind] = effects_table(fitted, LEVEL)[0]
    return effects


def naive_values(
    method: MixedEffects, total: dict[str, torch.Tensor], points: torch.Tensor, before: dict[str, torch.Tensor],
    context: AggregationContext,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Shared values of the last round, by its messages as if they were true."""
    private, rule, likelihood, number = method.private, method.exchange()["effects"], method.likelihood, context.round
    assert private is not None
    information, scores, _ = message_parts(total["products"], len(private.columns.names))
    values, vectors = torch.linalg.eigh(information)
    positive = vectors @ torch.diag_embed(values.clamp_min(1e-3)) @ vectors.mT
    known = likelihood.working(total["products"], points, number)  # type: ignore[attr-defined]
    taken = type(known).around(positive, scores, points, 1e-6, known.fixed, known.random)
    first = {k: v.double() for k, v in method.shared(InitialWeights.for_network(method.network, 0)).items()}
    start = {**before, **{k: first[k] for k in ("effects.root", "effects.at")}}
    start["effects.counts"] = torch.zeros(2).double()
    searched: dict[str, torch.Tensor] = rule.searched(start, taken, SITES, 1.0, replace(context, rule_state={}))  # type: ignore[attr-defined]
    return searched


def run(model: str, epsilon: float, replicates: int, folder: Path) -> None:
    """Replicates that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{model}-{epsilon:g}.jsonl"
    done = {json.loads(line)["seed"] for line in path.read_text().splitlines()} if path.exists() else set()
    with torch.no_grad(), open(path, "a") as file:
        for seed in range(replicates):
            if seed in done:
                continue
            line: dict[str, Any] = {"seed": seed}
            number = number_of(model, epsilon, seed)
            for kind, effects in tables(model, epsilon, number, seed < NAIVE).items():
                line[kind] = {
                    row.effect: [row.estimate, row.standard_error, row.lower, row.upper]
                    for row in effects.itertuples()
                    if row.effect in TRUTH
                }
            file.write(json.dumps(line) + "\n")
            file.flush()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(FORMULAS), required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--rows", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run(args.model, args.epsilon, args.replicates, args.rows)


if __name__ == "__main__":
    main()
