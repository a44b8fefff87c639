"""What intervals of PFedHB's adapters hold with tau and the network at the truth, by its draws and by a referee.

    python adapter_draws.py FIRST_SEED DATA_SETS [referee]

Data sets are those of ``tests/support/adapter_simulations.py``. Prints a line of csv for each client: its rows; the
shares of its numbers B_j in 90 % intervals and the scores of log tau, by draws from the mode on, as a round takes them,
and by draws from the prior on, as the last evaluation does; and the share of the last draws that are effective. With
``referee`` two further columns have share and score by sequential Monte Carlo (Del Moral, Doucet and Jasra, 2006): the
prior's draws are resampled at rising temperatures and moved by Metropolis steps, without weights in the end.
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
from hierfl.models.pfedhb.adapter_draws import Draws
from hierfl.models.pfedhb.adapter_likelihood import Likelihood
from hierfl.nn.networks.build import architecture

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.adapter_simulations import HIDDEN, NUMBER, RANK, simulated
from support.baselines import rows_of

DRAWS, PARTICLES, MOVES, LAST_MOVES, EFFECTIVE, ACCEPTED = 400, 1024, 6, 18, 0.5, 0.3


def covered(draws: Tensor, truth: Tensor) -> Tensor:
    """The share of each client's numbers (S, d) inside 90 % intervals of draws (K, S, d): (S,)."""
    low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
    return ((low <= truth) & (truth <= high)).double().mean(1)


def particles(likelihood: Likelihood, seed: int) -> Tensor:
    """Draws (M, 1, d) of one client's posterior by sequential Monte Carlo; tau is one."""
    rng, d = torch.Generator().manual_seed(seed), len(likelihood.tau)
    z = torch.randn((PARTICLES, d), generator=rng, dtype=torch.float64)

    def log_likelihood(z: Tensor) -> Tensor:
        return likelihood.heights(z[:, None])[:, 0] + 0.5 * z.square().sum(-1)

    log_p, t, width = log_likelihood(z), 0.0, 0.5
    while t < 1:
        low, high = 0.0, 2 * (1 - t)
        for _ in range(40):
            middle = (low + high) / 2
            effective = 1 / (middle * log_p).softmax(0).square().sum() >= EFFECTIVE * PARTICLES
            low, high = (middle, high) if effective else (low, middle)
        rise = min(low, 1 - t)
        weights, t = (rise * log_p).softmax(0), 1.0 if rise == 1 - t else t + rise
        places = (torch.arange(PARTICLES) + torch.rand(1, generator=rng)).double() / PARTICLES
        chosen = torch.searchsorted(weights.cumsum(0), places).clamp_max(PARTICLES - 1)
        z, log_p = z[chosen], log_p[chosen]
        mean, root = z.mean(0), torch.linalg.cholesky(torch.cov(z.T) + 1e-9 * torch.eye(d).double())
        for _ in range(MOVES if t < 1 else LAST_MOVES):
            e = torch.linalg.solve_triangular(root, (z - mean).T, upper=False).T
            noise = torch.randn(z.shape, generator=rng, dtype=torch.float64)
            moved = math.sqrt(1 - width**2) * e + width * noise
            new = mean + moved @ root.T
            new_log_p = log_likelihood(new)
            ratio = t * (new_log_p - log_p) + 0.5 * (z.square() - new.square() + moved.square() - e.square()).sum(-1)
            yes = torch.rand(PARTICLES, generator=rng).double().log() < ratio
            z, log_p = torch.where(yes[:, None], new, z), torch.where(yes, new_log_p, log_p)
            width = min(1.0, max(0.05, width * math.exp(float(yes.double().mean()) - ACCEPTED)))
    return z[:, None]


def main(first: int, many: int, referee: bool) -> None:
    """Prints the csv, and means over clients."""
    logging.disable(logging.WARNING)
    effective: list[Tensor] = []
    weights_of = Draws.weights

    def weights(draws: Draws) -> Tensor:
        effective.append(1 / weights_of(draws).square().sum(0) / len(draws.z))
        return weights_of(draws)

    Draws.weights = weights  # type: ignore[method-assign]
    header = "seed,rows,from_mode,from_prior,score_mode,score_prior,effective"
    print(header + ",referee,score_referee" * referee)
    lines = []
    for seed in range(first, first + many):
        federation, values = simulated("adapters", seed)
        net = architecture(f"mlp:{HIDDEN}", federation)
        method = PFedHB(net, heads="off", shares="off", adapters="on", adapter_rank=RANK, draws=DRAWS)
        shared = {k: values[k].float() for k in ("w", "base.1.weight", "base.1.bias")}
        spread = {"adapters.log_rho": torch.zeros(1).double(), "adapters.seed": torch.tensor([float(NUMBER)]).double()}
        rows = rows_of(method, federation, **shared, **spread)
        truth = values["own"][[int(j) for j in rows.clients]].double()
        begun = {
            "a": torch.zeros_like(truth)[:, None],
            "a_j_draws": torch.zeros((len(truth), 1, 1, DRAWS, truth.shape[1])),
        }
        rows = dataclasses.replace(rows, method=method.plain).put(begun)
        columns, scores = [], []
        for final in (False, True):
            moved = dataclasses.replace(method.adapters.step(final), newton=30).run(rows, 0)
            effective[:] = [torch.cat(effective)] if not final else effective
            columns.append(covered(moved.values["a_j_draws"].double().flatten(1, 2).squeeze(1).transpose(0, 1), truth))
            scores.append(moved.values["a_j/score"].flatten())
        columns += [*scores, torch.cat(effective[1:])]
        effective.clear()
        if referee:
            drawn = []
            for row in range(len(truth)):
                part = rows.part(row, row + 1)
                likelihood = Likelihood.for_chunk(part, method.adapters.changes, torch.ones(truth.shape[1]).double())
                drawn.append(particles(likelihood, 1000 * seed + row))
            all_drawn = torch.cat(drawn, 1)
            columns += [covered(all_drawn, truth), all_drawn.square().sum(-1).mean(0) - truth.shape[1]]
        for line in zip(rows.n.tolist(), *(column.tolist() for column in columns), strict=True):
            lines.append(line)
            print(f"{seed},{line[0]:.0f}," + ",".join(f"{number:.4f}" for number in line[1:]), flush=True)
    table = torch.tensor(lines)[:, 1:]
    error = (table.unflatten(0, (many, -1)).mean(1).std(0) / many**0.5).tolist() if many > 1 else [0.0] * table.shape[1]
    means = ", ".join(f"{a:.3f} ({b:.3f})" for a, b in zip(table.mean(0).tolist(), error, strict=True))
    print(f"means over clients (standard errors over data sets): {means}", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["referee"])
