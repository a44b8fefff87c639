"""What intervals of PFedHB's adapters hold with tau and the network at the truth, by modes and by chains.

    python adapter_modes.py FIRST_SEED DATA_SETS [chains]

Data sets are those of ``tests/support/adapter_simulations.py``. Prints a line of csv for each client: its rows; the
shares of its numbers B_j in 90 % intervals, by draws around the mode to which Newton's steps lead from zero, around
that from the true B_j, and around those of all starts, as the method does it; and how much higher the second mode is,
in nats. With ``chains`` a further column has the share by chains of elliptical slice sampling (Murray et al., 2010)
around the first approximation, which need no weights.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from hierfl.models import PFedHB
from hierfl.models.pfedhb.adapter_likelihood import Likelihood
from hierfl.nn.networks.build import architecture

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.adapter_simulations import HIDDEN, NUMBER, RANK, simulated
from support.baselines import rows_of

DRAWS, CHAINS, WARM_UP, STEPS, KEPT_EVERY, SHRINKS = 400, 16, 30, 90, 5, 40


def covered(draws: Tensor, truth: Tensor) -> Tensor:
    """The share of each client's numbers (S, d) inside 90 % intervals of draws (K, S, d): (S,)."""
    low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
    return ((low <= truth) & (truth <= high)).double().mean(1)


def chains(likelihood: Likelihood, mode: Tensor, seed: int) -> Tensor:
    """Draws (K, S, d) of the posterior by elliptical slices of a normal with Laplace's mean and covariance."""
    rng = torch.Generator().manual_seed(seed)
    root = torch.linalg.cholesky(likelihood.expanded(mode)[2] + torch.eye(mode.shape[1]).double())

    def at(e: Tensor) -> Tensor:
        return mode + torch.linalg.solve_triangular(root.mT, e[..., None], upper=True).squeeze(-1)

    def log_ratio(e: Tensor) -> Tensor:
        return likelihood.heights(at(e)) + 0.5 * e.square().sum(-1)

    e = torch.randn((CHAINS, *mode.shape), generator=rng, dtype=torch.float64)
    height, kept = log_ratio(e), []
    for step in range(STEPS):
        other = torch.randn(e.shape, generator=rng, dtype=torch.float64)
        level = height + torch.rand(height.shape, generator=rng, dtype=torch.float64).log()
        angle = 2 * math.pi * torch.rand(height.shape, generator=rng, dtype=torch.float64)
        low, high, moving = angle - 2 * math.pi, angle, torch.ones_like(height, dtype=torch.bool)
        for _ in range(SHRINKS):
            proposed = e * angle.cos()[..., None] + other * angle.sin()[..., None]
            new = log_ratio(proposed)
            arrived = moving & (new >= level)
            e, height = torch.where(arrived[..., None], proposed, e), torch.where(arrived, new, height)
            moving = moving & ~arrived
            # (the old point is at angle 0 of every ellipse: rows that have arrived stay)
            other = torch.where(moving[..., None], other, 0.0)
            if not bool(moving.any()):
                break
            high, low = torch.where(angle > 0, angle, high), torch.where(angle <= 0, angle, low)
            fresh = low + torch.rand(height.shape, generator=rng, dtype=torch.float64) * (high - low)
            angle = torch.where(moving, fresh, 0.0)
        if step >= WARM_UP and step % KEPT_EVERY == 0:
            kept.append(at(e))
    return torch.cat(kept)


def main(first: int, many: int, with_chains: bool) -> None:
    """Prints the csv, and means over clients."""
    logging.disable(logging.WARNING)
    print("seed,rows,from_zero,from_truth,from_all,higher_by" + ",chains" * with_chains)
    lines = []
    for seed in range(first, first + many):
        federation, values = simulated("adapters", seed)
        net = architecture(f"mlp:{HIDDEN}", federation)
        method = PFedHB(net, heads="off", shares="off", adapters="on", adapter_rank=RANK)
        shared = {k: values[k].float() for k in ("w", "base.1.weight", "base.1.bias")}
        spread = {"adapters.log_rho": torch.zeros(1).double(), "adapters.seed": torch.tensor([float(NUMBER)]).double()}
        rows = rows_of(method, federation, **shared, **spread)
        rows = dataclasses.replace(rows, method=method.plain)
        truth = values["own"][[int(j) for j in rows.clients]].double()
        all_starts = dataclasses.replace(method.adapters.step(True), newton=30, final=DRAWS)
        one = dataclasses.replace(all_starts, starts=(0, 0), many=2000)
        zero = torch.zeros_like(truth)
        ways = ((one, zero), (one, truth), (all_starts, zero))
        found = [step.run(rows.put({"a": start[:, None]}), 0) for step, start in ways]
        modes = [moved.values["a"].squeeze(1).double() for moved in found]
        likelihood = Likelihood.for_chunk(found[0], method.adapters.changes, torch.ones(truth.shape[1]).double())
        draws = [moved.values["a_j_draws"].double().squeeze(1).squeeze(1).transpose(0, 1) for moved in found]
        columns = [covered(some, truth) for some in draws]
        columns.append(likelihood.height(modes[1]) - likelihood.height(modes[0]))
        columns += [covered(chains(likelihood, modes[0], seed), truth)] if with_chains else []
        for line in zip(rows.n.tolist(), *(column.tolist() for column in columns), strict=True):
            lines.append(line)
            print(f"{seed},{line[0]:.0f}," + ",".join(f"{number:.4f}" for number in line[1:]), flush=True)
    table = torch.tensor(lines)
    means = ", ".join(f"{number:.3f}" for number in table[:, 1:].mean(0).tolist())
    higher, lower = (float((sign * table[:, 4] > 0.05).double().mean()) for sign in (1, -1))
    print(f"means over clients: {means}; higher by 0.05 nats {higher:.2f}, lower {lower:.2f}", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["chains"])
