"""Whether PFedHB's intervals of heads cover where few small clients say little of rho.

    python -P tests/support/few_heads.py DATA_SETS [FIRST_SEED] [on|off] [held|trained]

Twelve clients of five rows, two classes, three features; w ~ N(0, I), heads around it with rho = 0.5 of weights and
biases: declared before it was run. "held": w is the true one, so that intervals lack nothing but rho; "trained": by
FedAvg. Prints for each data set the share of the heads' numbers that 90 % intervals hold, where rho ends from two
starts, 0.05 and 5, the 5 to 95 % of its posterior, and means over data sets.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from typing import Any

import numpy as np
import torch

import hierfl
from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture

CLIENTS, ROWS, FEATURES, CLASSES, RHO = 12, 5, 3, 2, 0.5
ROUNDS = 16


class Held(PFedHB):
    """Its w is the true one."""

    truth: torch.Tensor

    def shared(self, start: InitialWeights) -> State:
        return super().shared(self.begin(start))

    def personal(self, start: InitialWeights) -> State:
        return super().personal(self.begin(start))

    def begin(self, start: InitialWeights) -> InitialWeights:
        """There."""
        return dataclasses.replace(start, head=self.truth / self.settings.init_scale)


def drawn(seed: int) -> tuple[hierfl.Federation, torch.Tensor, torch.Tensor]:
    """A federation, its w (d,), and its heads (J, d)."""
    rng = np.random.default_rng([seed, 12])
    numbers = CLASSES * (FEATURES + 1)
    w = rng.normal(size=numbers)
    heads = w + RHO * rng.normal(size=(CLIENTS, numbers))
    cut = CLASSES * FEATURES
    x = rng.normal(size=(CLIENTS, ROWS, FEATURES))
    f = np.einsum("jnp,jcp->jnc", x, heads[:, :cut].reshape(CLIENTS, CLASSES, FEATURES)) + heads[:, None, cut:]
    y = (f + rng.gumbel(size=f.shape)).argmax(-1)
    names = np.repeat([f"place-{j:02d}" for j in range(CLIENTS)], ROWS)
    federation = hierfl.Federation.from_arrays(
        x.reshape(-1, FEATURES).astype(np.float32), y.flatten(), names, test=0.0, standardise=False
    )
    return federation, torch.tensor(w), torch.tensor(heads)


def fitted(seed: int, nodes: str, base: str, sigma_0: float = 0.1, **more: Any) -> tuple[Run, torch.Tensor]:
    """A fit, and the true heads."""
    federation, w, heads = drawn(seed)
    network = architecture("linear", federation)
    settings = {"shares": "off", "nodes": nodes, "every": 1, "draws": 200, "sigma_0": sigma_0, **more}
    settings |= {"epochs": 0} if base == "held" else {"epochs": 2, "lr": 0.1}
    method = (Held if base == "held" else PFedHB)(network, **settings)
    if isinstance(method, Held):
        method.truth = w
    options: dict[str, Any] = {"dtype": torch.float64, "evaluate_every": 10_000, "seed": seed, "progress": False}
    return fit(method, federation, rounds=ROUNDS, **options), heads


def measured(seed: int, nodes: str, base: str) -> dict[str, Any]:
    """Of one data set."""
    figures: dict[str, Any] = {"seed": seed}
    for start in (0.05, 5.0):
        run, heads = fitted(seed, nodes, base, start)
        draws = run.personal["w_j_draws"].flatten(1, -2).movedim(1, 0).double()  # (K, J, d)
        low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
        figures[f"covered from {start:g}"] = round(float(((low <= heads) & (heads <= high)).double().mean()), 4)
        figures[f"rho from {start:g}"] = [round(v, 4) for v in run.shared["heads.log_rho"].exp().tolist()]
        if "at_nodes.log_rho" in run.shared:
            log_rho, weight = run.shared["at_nodes.log_rho"], run.shared["at_nodes.log_weight"].softmax(-1)
            figures[f"E log rho from {start:g}"] = [round(v, 3) for v in (weight @ log_rho).tolist()]
    return figures


def main(many: int, first: int = 0, nodes: str = "on", base: str = "held") -> None:
    """Prints each data set as it is done, and the shares."""
    logging.disable(logging.WARNING)
    rows = []
    for seed in range(first, first + many):
        rows.append(measured(seed, nodes, base))
        print(json.dumps(rows[-1]), flush=True)
    for start in ("0.05", "5"):
        covered = np.array([row[f"covered from {start}"] for row in rows])
        print(f"from {start}: {covered.mean():.3f} +- {covered.std(ddof=1) / np.sqrt(len(rows)):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, *sys.argv[3:5])
