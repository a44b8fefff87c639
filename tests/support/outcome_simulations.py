"""How often PFedHB's outcome enters where it is in the data and where it is not, and how often its intervals cover.

    python -P tests/support/outcome_simulations.py TRUTH DATA_SETS [FIRST_SEED] [BASE]

TRUTH is none, outcome, or larger. BASE is held (the network is the one that the
data are from), trained, or undertrained (by steps that are too short). Prints each data set, how often the part has
entered, its gain, and the share of the clients' m_j and l_j inside their 90 % intervals.

Twenty clients, of 5 to 250 rows (uniform in the logarithm), ten features, noise 0.5. Effects of outcome, declared
before it was run: m_j of standard deviation 0.25 (half the noise), l_j of standard deviation 0.3. Effects of
larger, declared after four data sets of these had been seen, two of which the part did not enter: 0.5 (the noise), and
0.5.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch

import hierfl
from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture

FEATURES, CLIENTS, NOISE, SIZES = 10, 20, 0.5, (5, 250)
#: standard deviations of m_j, in parts of the noise, and of l_j
EFFECTS = {"none": (0.0, 0.0), "outcome": (0.5, 0.3), "larger": (1.0, 0.5)}
#: rounds: fewer than the default, so that it takes less long
JUDGED = 12
TRAINING = {"held": {"epochs": 0}, "trained": {"epochs": 2, "lr": 0.02}, "undertrained": {"epochs": 1, "lr": 0.0005}}


class Held(PFedHB):
    """Its network is the one that the data are from."""

    head: torch.Tensor

    def shared(self, start: InitialWeights) -> State:
        return super().shared(dataclasses.replace(start, head=self.head / self.settings.init_scale))


def simulated(truth: str, seed: int) -> tuple[hierfl.Federation, torch.Tensor, np.ndarray]:
    """A federation, its network's head (FEATURES + 1,), and m_j / noise and l_j of each client, (CLIENTS, 2)."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=FEATURES + 1)
    sizes = np.exp(rng.uniform(*np.log(SIZES), CLIENTS)).round().astype(int)
    own = rng.normal(size=(CLIENTS, 2)) * EFFECTS[truth]
    who = np.repeat(np.arange(CLIENTS), sizes)
    x = rng.normal(size=(len(who), FEATURES))
    e = own[who, 0] + np.exp(own[who, 1]) * rng.normal(size=len(who))
    y, names = x @ w[:-1] + w[-1] + NOISE * e, np.array([f"place-{j:02d}" for j in who])
    federation = hierfl.Federation.from_arrays(
        x.astype(np.float32), y, names, test=0.0, task="regression", standardise=False
    )
    return federation, torch.from_numpy(w), own


def entered(truth: str, seed: int, base: str = "held", judged: int = JUDGED, draws: int = 400) -> dict[str, float]:
    """What a fit says of one data set, and how many of its clients' numbers are inside their 90 % intervals."""
    federation, w, own = simulated(truth, seed)
    method_class = Held if base == "held" else PFedHB
    settings = {"heads": "off", "outcome": "auto", "judged": judged, "batch": 10, "draws": draws, **TRAINING[base]}
    method = method_class(architecture("linear", federation, noise=NOISE), **settings)
    if isinstance(method, Held):
        method.head = w
    options = {"rounds": judged + 5, "dtype": torch.float64, "evaluate_every": 10_000, "seed": seed}
    run = fit(method, federation, progress=False, **options)
    numbers = method.population_summary(run.fitted)[1]
    drawn = run.personal["o_j_draws"].reshape(CLIENTS, -1, 2).double()
    low, high = (drawn.quantile(q, 1).numpy() for q in (0.05, 0.95))
    inside = ((low <= own) & (own <= high)).mean(0)
    return {**numbers, "inside_m": float(inside[0]), "inside_s": float(inside[1])}


def rates(results: Sequence[Mapping[str, float]]) -> str:
    """How often the part has entered, quantiles of its gain, and coverage over the data sets where it has."""
    gains = np.quantile([f["gain_outcome"] for f in results], (0.05, 0.5, 0.95)).round(1)
    lines = [f"entered {sum(f['entered_outcome'] for f in results):.0f} of {len(results)}, gain {gains}"]
    inside = [[f["inside_m"], f["inside_s"]] for f in results if f["entered_outcome"]]
    if len(inside) > 1:
        error = np.std(inside, axis=0, ddof=1) / np.sqrt(len(inside))
        for name, share, e in zip(("m_j", "l_j"), np.mean(inside, axis=0), error, strict=True):
            lines.append(f"90 % intervals of {name} hold {100 * share:.1f} % (standard error {100 * e:.1f})")
    return "\n".join(lines)


def main(truth: str, many: int, first: int = 0, base: str = "held") -> None:
    """Prints each data set as it is done, and the rates."""
    logging.disable(logging.WARNING)
    results = []
    for seed in range(first, first + many):
        results.append(entered(truth, seed, base))
        print(json.dumps({"base": base, "truth": truth, "seed": seed, **results[-1]}), flush=True)
    print(rates(results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0, *sys.argv[4:5])
