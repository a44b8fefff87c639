"""Final spreads of PFedEB and its predictions by draws, from four starts, the base held.

    python experiments/results/posteriors/starts.py OUT.csv [--data digits] [--data-root DIR] [--rounds 60]
        [--starts 0.1 0.3 1 3] [--seeds 1]

Of real data the base comes from 30 rounds of PFedEB with the settings below; it is held, and heads, q(w) and spreads
begin again from each rho_0, at all clients (of Fashion-MNIST the first twenty of a hundred) in every round. Simulations
are of 50 clients with features as their inputs. A row is written as its fit ends; rows that are in OUT.csv are not
computed again.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from hierfl import fit
from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.models import PFedEB
from hierfl.nn.networks.build import architecture

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.simulated_heads import fitted, simulated


@dataclass(frozen=True)
class Case:
    """Clients, network, how its base is found, how many clients begin again, and with which settings."""

    clients: int
    network: str
    settings: dict[str, Any]
    participation: float
    again: int
    held: dict[str, Any] = field(default_factory=dict)


FASHION: dict[str, Any] = {"server_lr": 0.5, "base_lr": 0.0025, "base_batch": 20}
CASES = {
    "digits": Case(20, "mlp:64", {"base_lr": 0.005}, 1.0, 20),
    "fashion-mnist": Case(100, "mlp:100", FASHION, 0.1, 20),
    # q(w)'s whole covariance, where the default has a matrix for each output.
    "fashion-mnist-full": Case(100, "mlp:100", FASHION, 0.1, 20, {"exchange": "full"}),
}
#: family and true rho
SIMULATIONS = {
    f"{family}-{rho:g}": (family, rho) for family in ("gaussian", "logistic", "softmax") for rho in (0.0, 0.3, 1.0)
}


class HeldBase(PFedEB):
    """PFedEB from a base that is there."""

    name = "pfedeb-held"
    base: State

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), **self.base}


def made(data: str, root: Path, seed: int) -> tuple[Federation, Any]:
    """The federation and its network."""
    case, pool = CASES[data], registry.load(data.removesuffix("-full"), root, seed)
    federation = Federation.from_pool(pool, case.clients, "label-skew:5", validation=0.0, seed=seed)
    return federation, architecture(case.network, federation)


def real(
    federation: Federation, network: Any, base: State, settings: dict[str, Any], start: float, rounds: int, seed: int
) -> Run:
    """Heads and population from one start."""
    method = HeldBase(network, sigma_0=start, base_epochs=0, draws=500, **settings)
    method.base = base
    how: dict[str, Any] = {"seed": seed, "evaluate_every": rounds, "draws": 500, "progress": False}
    return fit(method, federation, rounds, **how)


def drawn(name: str, start: float, rounds: int, seed: int) -> Run:
    """The same, of a simulation."""
    truth = simulated(*SIMULATIONS[name], seed)
    return fitted(truth, rounds, seed, sigma_0=start, spreads="blocks", w_scale=0.0, nodes="off")


def row(run: Run) -> dict[str, float]:
    """The spreads and metrics of one run."""
    shared = run.shared
    rho, metrics = shared["w.log_rho"].exp().tolist(), run.metrics[run.metrics["split"] == "test"].iloc[-1]
    sd = torch.linalg.inv(shared["w.information"].double()).diagonal().sqrt().tolist()
    spreads = {f"rho_{name}": round(value, 5) for name, value in zip(("weights", "biases"), rho, strict=True)}
    errors = {f"se_log_{name}": round(value, 4) for name, value in zip(("weights", "biases"), sd, strict=True)}
    names = [k for k in ("pm_nll", "pm_ece", "pm_draws_nll", "pm_draws_ece") if k in metrics]
    scale = {"s_w_weights": round(float(shared["w.log_scale"][0].exp()), 4)}
    bound = {"bound": round(float(shared["w.log_evidence"]), 2)}
    return {**spreads, **errors, **scale, **{k: round(float(metrics[k]), 5) for k in names}, **bound}


def main() -> None:
    """Computes the rows that lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", choices=[*CASES, *SIMULATIONS], default="digits")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--starts", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    rows = pd.read_csv(given.out).to_dict("records") if given.out.is_file() else []
    for seed in range(given.seeds):
        keys = [{"data": given.data, "seed": seed, "rounds": given.rounds, "rho_0": start} for start in given.starts]
        lack = [key for key in keys if not any(all(r[k] == v for k, v in key.items()) for r in rows)]
        begin = partial(drawn, given.data)
        if lack and given.data in CASES:
            case, (federation, network) = CASES[given.data], made(given.data, given.data_root, seed)
            how: dict[str, Any] = {"seed": seed, "evaluate_every": 30, "progress": False}
            first = fit(PFedEB(network, **case.settings), federation, 30, participation=case.participation, **how)
            base = {k: v for k, v in first.shared.items() if k.startswith("base")}
            begin = partial(real, federation.select(list(range(case.again))), network, base, case.held)
        for key in lack:
            began = time.process_time()
            led_to = row(begin(key["rho_0"], given.rounds, seed))
            rows.append({**key, **led_to, "cpu_seconds": round(time.process_time() - began, 1)})
            pd.DataFrame(rows).to_csv(given.out, index=False)
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
