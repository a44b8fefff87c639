"""Gaussian posteriors of heads beside Pyro's NUTS: the same features, the same w = 0 and rho."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from hierfl.inference import fit
from hierfl.models import PFedEB

from .head_evidence import Padded, derivatives, padded
from .simulated_heads import CLASSES, Truth, contrasts

#: smallest eigenvalue of rho^2 H at the mode of a direction of which the data say something
SAID = 0.2


@dataclass(frozen=True)
class Agreement:
    """Of one client, along directions of which its data say something, and for the contrasts of held-out logits.

    Attributes:
        n: its examples.
        mean: differences of means, in the chains' standard deviations.
        sd: ratios of standard deviations.
        logit_mean, logit_sd: the same of logits.
    """

    n: int
    mean: np.ndarray
    sd: np.ndarray
    logit_mean: np.ndarray
    logit_sd: np.ndarray


def chains(data: Padded, rho: float, start: Tensor, draws: int, seed: int) -> Tensor:
    """Draws (K, J, d) of all w_j given w = 0, in the order of the weight matrix, by NUTS."""

    def potential(at: dict[str, Tensor]) -> Tensor:
        w_j = at["w_j"]
        eta = data.z @ w_j.unflatten(-1, (data.rows, -1)).mT
        logits = eta @ torch.tensor(contrasts(CLASSES[data.family]))
        chosen = logits.gather(-1, data.y[..., None])[..., 0] - logits.logsumexp(-1)
        return (w_j / rho).square().sum() / 2 - chosen[data.mask].sum()

    kernel = NUTS(potential_fn=potential, target_accept_prob=0.8)
    mcmc = MCMC(kernel, draws, warmup_steps=300, initial_params={"w_j": start}, disable_progbar=True)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        mcmc.run()
    return mcmc.get_samples()["w_j"]


def agreement(truth: Truth, run_draws: Tensor, referee: Tensor, data: Padded, rho: float) -> list[Agreement]:
    """Of every client; both draws are (K, J, d) in the order of the weight matrix."""
    _, h = derivatives(data, run_draws.mean(0))
    values, vectors = torch.linalg.eigh(rho**2 * h)
    q = data.rows
    agreements = []
    for j, n in enumerate(truth.n):
        directions = vectors[j][:, values[j] > SAID]
        mean, sd = _compared(run_draws[:, j] @ directions, referee[:, j] @ directions)
        x, _ = truth.fed.examples(truth.fed.test[j])
        z = truth.net.head.design(x)
        logits = [(z @ each[:, j].unflatten(-1, (q, -1)).mT).flatten(1) for each in (run_draws, referee)]
        agreements.append(Agreement(int(n), mean, sd, *_compared(*logits)))
    return agreements


def _compared(ours: Tensor, theirs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    sd = theirs.std(0)
    return ((ours.mean(0) - theirs.mean(0)) / sd).numpy(), (ours.std(0) / sd).numpy()


def beside_nuts(truth: Truth, draws: int, seed: int, **variants: dict[str, object]) -> dict[str, list[Agreement]]:
    """Agreement of each variant, settings of PFedEB; the truth's w is 0."""
    data, ours = padded(truth), {}
    for name, settings in variants.items():
        how = {"prior": "fixed", "sigma_0": truth.rho, "base_epochs": 0, "draws": 4000, **settings}
        method = PFedEB(truth.net, **how)
        run = fit(method, truth.fed, rounds=3, seed=seed, dtype=torch.float64, progress=False, evaluate_every=10_000)
        heads = run.personal["w_j_draws"].flatten(1, -2).movedim(1, 0)
        ours[name] = heads[..., truth.net.head.matrix_order]
    start = next(iter(ours.values())).mean(0)
    referee = chains(data, truth.rho, start, draws, seed)
    return {name: agreement(truth, heads, referee, data, truth.rho) for name, heads in ours.items()}
