"""How often PFedHB's adapters enter where they are in the data and where they are not, and how often intervals cover.

    python -P tests/support/adapter_simulations.py TRUTH DATA_SETS [FIRST_SEED] [BASE]

TRUTH is none or adapters. BASE is held (the network is the one that the data are from), trained, or undertrained (by
steps that are too short). Prints each data set, whether the part has entered, its gain and tau, and the share of the
clients' numbers B_j inside their 90 % intervals.

Twenty clients, of 5 to 250 rows (uniform in the logarithm), six features of standard normals, four classes, one hidden
layer of eight. W has entries N(0, 1/6), the head N(0, 1). Effects, declared before it was run: rank 2, so 16 numbers of
a client, each N(0, 1): the change of a hidden unit has the variance that its input has by W. Heads and shares are off.
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

FEATURES, HIDDEN, CLASSES, CLIENTS, SIZES, RANK = 6, 8, 4, 20, (5, 250), 2
TAU = 1.0
#: which A
NUMBER = 11
#: rounds: fewer than the default, so that it takes less long; and more of them in which tau settles
JUDGED, MORE = 12, 8
TRAINING = {"held": {"epochs": 0}, "trained": {"epochs": 2, "lr": 0.1}, "undertrained": {"epochs": 1, "lr": 0.002}}


class Known(PFedHB):
    """Its A are those that the data are from; its network, too, where that is given."""

    truth: State | None = None

    def shared(self, start: InitialWeights) -> State:
        begun = super().shared(self.begin(start))
        return {**begun, "adapters.seed": torch.full_like(begun["adapters.seed"], NUMBER)}

    def personal(self, start: InitialWeights) -> State:
        return super().personal(self.begin(start))

    def begin(self, start: InitialWeights) -> InitialWeights:
        """There."""
        if self.truth is None:
            return start
        base = {k: self.truth[k].to(v) for k, v in start.base.items()}
        return dataclasses.replace(start, base=base, head=self.truth["w"] / self.settings.init_scale)


def simulated(truth: str, seed: int) -> tuple[hierfl.Federation, State]:
    """A federation; its network's values, and all B, (CLIENTS, HIDDEN RANK)."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(*np.log(SIZES), CLIENTS)).round().astype(int)
    weight, bias = rng.normal(size=(HIDDEN, FEATURES)) / np.sqrt(FEATURES), np.zeros(HIDDEN)
    head = rng.normal(size=(CLASSES, HIDDEN))
    template = hierfl.Federation.from_arrays(
        np.zeros((2, FEATURES), np.float32), np.array([0, CLASSES - 1]), np.array(["a", "a"]), test=0.0,
        standardise=False,
    )  # fmt: skip
    method = PFedHB(architecture(f"mlp:{HIDDEN}", template), adapters="on", adapter_rank=RANK)
    (a,) = method.adapters.changes.matrices(NUMBER, torch.zeros((), dtype=torch.float64)).values()
    own = (TAU if truth == "adapters" else 0.0) * rng.normal(size=(CLIENTS, HIDDEN, RANK))
    x, y, who = [], [], []
    for j, n in enumerate(sizes):
        x_j = rng.normal(size=(n, FEATURES))
        h = np.maximum(x_j @ (weight + own[j] @ a.numpy()).T + bias, 0)
        f = h @ head.T
        x.append(x_j)
        y.append((f + rng.gumbel(size=f.shape)).argmax(1))
        who += [f"place-{j:02d}"] * n
    federation = hierfl.Federation.from_arrays(
        np.concatenate(x).astype(np.float32), np.concatenate(y), np.array(who), test=0.0, standardise=False
    )
    w = np.concatenate([head.ravel(), np.zeros(CLASSES)])
    numbers = {"base.1.weight": weight, "base.1.bias": bias, "w": w, "own": own.reshape(CLIENTS, -1)}
    return federation, {k: torch.from_numpy(v) for k, v in numbers.items()}


def entered(truth: str, seed: int, base: str = "held", judged: int = JUDGED, draws: int = 200) -> dict[str, float]:
    """What a fit says of one data set, and how many of its clients' numbers are inside their 90 % intervals."""
    federation, values = simulated(truth, seed)
    settings = {"heads": "off", "shares": "off", "adapters": "auto", "adapter_rank": RANK, "judged": judged}
    method = Known(architecture(f"mlp:{HIDDEN}", federation), **settings, batch=10, draws=draws, **TRAINING[base])
    if base == "held":
        method.truth = values
    options = {"rounds": judged + MORE, "dtype": torch.float64, "evaluate_every": 10_000, "seed": seed}
    run = fit(method, federation, progress=False, **options)
    numbers = method.population_summary(run.fitted)[1]
    drawn = run.personal["a_j_draws"].reshape(CLIENTS, -1, HIDDEN * RANK).double()
    low, high = (drawn.quantile(q, 1) for q in (0.05, 0.95))
    inside = ((low <= values["own"]) & (values["own"] <= high)).double().mean()
    return {**numbers, "inside": float(inside), "tau": float(run.shared["adapters.log_rho"].exp()[0])}


def rates(results: Sequence[Mapping[str, float]]) -> str:
    """How often the part has entered, quantiles of its gain and of tau, and coverage where it has entered."""
    gains, taus = (np.quantile([f[k] for f in results], (0.05, 0.5, 0.95)).round(2) for k in ("gain_adapters", "tau"))
    lines = [f"entered {sum(f['entered_adapters'] for f in results):.0f} of {len(results)}, gain {gains}, tau {taus}"]
    inside = [f["inside"] for f in results if f["entered_adapters"]]
    if len(inside) > 1:
        error = np.std(inside, ddof=1) / np.sqrt(len(inside))
        lines.append(f"90 % intervals of B_j hold {100 * np.mean(inside):.1f} % (standard error {100 * error:.1f})")
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
