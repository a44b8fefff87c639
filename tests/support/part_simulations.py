"""How often PFedHB's parts enter where they are in the data, and where they are not.

    python -P tests/support/part_simulations.py TRUTH DATA_SETS [FIRST_SEED] [BASE]

TRUTH is none, shares, heads, features or confusion. BASE is held (the network is the one that the data are from),
trained, undertrained (by steps that are too short) or overfitted (a hidden layer that learns its rows by heart).
Prints each data set, how often each part has entered, and quantiles of its gain (5, 50 and 95 %).

Twenty clients, of 5 to 250 rows (uniform in the logarithm), ten features, five classes. Effects, declared before it
was run: shares of two or three classes (kappa 1/2 each, beta 1); heads with rho = 0.5 of weights and biases, in a
network whose weights have standard deviation 1; scales and shifts of the features with tau = 0.5; labels permuted at
each client with probability 0.3. Confusion may enter beside the others: a fourth part.
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

FEATURES, CLASSES, CLIENTS = 10, 5, 20
SIZES = 5, 250
RHO, TAU = 0.5, 0.5
CLASSES_OF_A_CLIENT = 2, 3
#: rounds: fewer than the default, so that it takes less long
JUDGED = 12
PARTS = "shares", "heads", "features"
ALL = (*PARTS, "confusion")
#: how often a client's labels are permuted
PERMUTED = 0.3


def simulated(truth: str, seed: int, w: torch.Tensor) -> hierfl.Federation:
    """A federation from a linear network's head w (CLASSES, FEATURES + 1)."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(*np.log(SIZES), CLIENTS)).round().astype(int)
    x, y, client = [], [], []
    weights = w.numpy()
    pool_x = rng.normal(size=(20_000, FEATURES))
    pool_y = labels(pool_x, weights, rng)
    places = [np.flatnonzero(pool_y == c) for c in range(CLASSES)]
    m = np.bincount(pool_y, minlength=CLASSES) / len(pool_y)
    for j, n in enumerate(sizes):
        if truth == "shares":
            size = rng.choice(CLASSES_OF_A_CLIENT)
            kept = chosen_set(size, m, rng)
            share = rng.dirichlet(CLASSES * m[kept])
            y_j = kept[rng.choice(size, n, p=share)]
            x_j = pool_x[[rng.choice(places[c]) for c in y_j]]
        else:
            x_j = rng.normal(size=(n, FEATURES))
            own, seen = weights, x_j
            if truth == "heads":
                own = weights + RHO * rng.normal(size=weights.shape)
            if truth == "features":
                seen = (1 + TAU * rng.normal(size=FEATURES)) * x_j + TAU * rng.normal(size=FEATURES)
            y_j = labels(seen, own, rng)
            if truth == "confusion" and rng.random() < PERMUTED:
                y_j = rng.permutation(CLASSES)[y_j]
        x.append(x_j)
        y.append(y_j)
        client += [f"place-{j:02d}"] * n
    return hierfl.Federation.from_arrays(
        np.concatenate(x).astype(np.float32), np.concatenate(y), np.array(client), test=0.0, standardise=False
    )


def chosen_set(size: int, m: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A set of so many classes, in proportion to the sum of their shares: one is drawn by share, others are any."""
    first = rng.choice(CLASSES, p=m)
    others = rng.choice([c for c in range(CLASSES) if c != first], size - 1, replace=False)
    return np.sort(np.append(others, first))


def labels(x: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Drawn from the softmax."""
    f = x @ weights[:, :-1].T + weights[:, -1]
    return (f + rng.gumbel(size=f.shape)).argmax(1)


class Held(PFedHB):
    """Its network is the one that the data are from."""

    head: torch.Tensor

    def shared(self, start: InitialWeights) -> State:
        return super().shared(self.begin(start))

    def personal(self, start: InitialWeights) -> State:
        return super().personal(self.begin(start))

    def begin(self, start: InitialWeights) -> InitialWeights:
        """There."""
        return dataclasses.replace(start, head=self.head / self.settings.init_scale)


def entered(truth: str, seed: int, base: str, judged: int = JUDGED, parts: Sequence[str] = PARTS) -> dict[str, float]:
    """What a fit says of one data set."""
    training = {
        "held": {"epochs": 0},
        "trained": {"epochs": 2, "lr": 0.1},
        "undertrained": {"epochs": 1, "lr": 0.002},
        "overfitted": {"epochs": 5, "lr": 0.5},
    }
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn((CLASSES, FEATURES + 1), generator=generator, dtype=torch.float64)
    federation = simulated(truth, seed, w)
    network = architecture("mlp:50" if base == "overfitted" else "linear", federation)
    switches = {**dict.fromkeys(PARTS, "off"), **dict.fromkeys(parts, "auto")}
    settings = {**switches, "judged": judged, "batch": 10, "draws": 2, **training[base]}
    method = (Held if base == "held" else PFedHB)(network, **settings)
    if isinstance(method, Held):
        method.head = torch.cat([w[:, :-1].flatten(), w[:, -1]])
    options = {"rounds": judged, "dtype": torch.float64, "evaluate_every": 10_000, "seed": seed}
    run = fit(method, federation, progress=False, **options)
    return method.population_summary(run.fitted)[1]


def main(truth: str, many: int, first: int = 0, base: str = "held") -> None:
    """Prints each data set as it is done, and the rates."""
    logging.disable(logging.WARNING)
    rows = []
    for seed in range(first, first + many):
        rows.append(entered(truth, seed, base, parts=ALL))
        print(json.dumps({"base": base, "truth": truth, "seed": seed, **rows[-1]}), flush=True)
    print(rates(rows))


def rates(rows: Sequence[Mapping[str, float]]) -> str:
    """How often each part has entered, with a standard error, and quantiles of its gains."""
    lines, many = [], len(rows)
    for part in ALL:
        rate = np.mean([f[f"entered_{part}"] for f in rows])
        low, middle, high = np.quantile([f[f"gain_{part}"] for f in rows], (0.05, 0.5, 0.95))
        error = np.sqrt(rate * (1 - rate) / many)
        lines.append(f"{part:9} entered {rate:.3f} +- {error:.3f}  gain {low:.1f} {middle:.1f} {high:.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0, *sys.argv[4:5])
