"""pFedGP: rounds against plain loops of the paper's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.baselines import NOISE, features, lacking_classes, rbf
from support.federations import slopes
from torch import Tensor

from hierfl import Federation
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.held_out import held_out
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import PFedGP
from hierfl.nn.networks.build import architecture
from hierfl.ppl.class_tree import class_tree
from hierfl.ppl.gaussian_process import NUGGET, POINTS, logistic_precisions


def log_predictive(z: Tensor, y: Tensor, given_z: Tensor, given_y: Tensor) -> Tensor:
    """Of each y by itself, by the textbook's formula."""
    k = rbf(given_z, given_z) + NOISE**2 * torch.eye(len(given_z), dtype=z.dtype)
    cross = rbf(z, given_z)
    mean = cross @ torch.linalg.solve(k, given_y)
    variance = 8.0 - (cross * torch.linalg.solve(k, cross.T).T).sum(1) + NOISE**2
    return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)


def check_rounds(method: PFedGP, fed: Federation, loss_of: Callable[[ClientChunk, dict, int], Tensor]) -> None:
    """Whoever takes part takes three clipped steps down its own loss; the server takes the plain mean."""
    options = Options(rounds=3, participation=0.5, dtype=torch.float64, evaluate_every=10, seed=1)
    ready, clipped, clip = Fit(method, fed, options), 0, method.settings.clip
    for number in range(1, 4):
        before = {k: v.clone() for k, v in ready.state.shared.items()}
        ready.step()
        copies = []
        for j in ready.journal.status[-1].nonzero().flatten().tolist():
            own, moving = before, {k: torch.zeros_like(v) for k, v in before.items()}
            chunk = ClientChunk(method, fed, [j], number, 1, before, {})
            for step in range(3):
                own = {k: v.detach().requires_grad_() for k, v in own.items()}
                slopes_ = torch.autograd.grad(loss_of(chunk, own, step), list(own.values()))
                length = torch.stack([g.square().sum() for g in slopes_]).sum().sqrt()
                clipped += int(length > clip)
                share = float((clip / length.clamp_min(1e-12)).clamp_max(1))
                for (k, v), g in zip(own.items(), slopes_, strict=True):
                    moving[k] = 0.9 * moving[k] + g * share + 1e-3 * v.detach()
                own = {k: v.detach() - 0.02 * moving[k] for k, v in own.items()}
            copies.append(own)
        assert 0 < len(copies) < fed.clients
        for k, v in ready.state.shared.items():
            torch.testing.assert_close(v, torch.stack([own[k] for own in copies]).mean(0), rtol=1e-7, atol=1e-10)
    assert clipped


@pytest.mark.parametrize("objective", ["predictive", "marginal"])
def test_rounds_of_a_regression_are_a_plain_loop_of_the_papers_formulas(objective: str) -> None:
    """Of a random half given the rest, or the marginal likelihood of all."""
    towns = slopes([23, 12, 9, 14, 3])
    net = architecture("mlp:5", towns, noise=NOISE)

    def loss(chunk: ClientChunk, own: dict, step: int) -> Tensor:
        batch = chunk.batch()
        if objective == "marginal":
            z, n = features(own, batch.x[0]), batch.width
            cov = rbf(z, z) + NOISE**2 * torch.eye(n, dtype=z.dtype)
            law = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=z.dtype), cov)
            return -law.log_prob(batch.y[0]) / n
        half = held_out(chunk, batch, 0.5, 0, step)
        assert half.given is not None
        rest = half.given.examples
        return -log_predictive(features(own, half.x[0]), half.y[0], features(own, rest.x[0]), rest.y[0]).mean()

    check_rounds(PFedGP(net, steps=3, lr=0.02, clip=0.5, objective=objective), towns, loss)


def log_sides(kernel: tuple[Tensor, Tensor], sign: Tensor, omega: Tensor) -> Tensor:
    """log p(right) and log p(left) of each new example at a node, by the textbook's formula, averaged over draws.

    Args:
        kernel: K (m, m) of the examples below the node, and their covariances (m, n) with the new ones.
        sign: (m,).
        omega: (D, m), draws of the Polya-Gamma variables: f is as if sign / (2 omega) had been seen with variance
            1 / omega.
    """
    k, cross = kernel
    x, w = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(POINTS))
    each = []
    for drawn in omega:
        solved = torch.linalg.solve(k + torch.diag(1 / drawn), cross)
        mean, variance = solved.T @ (sign / (2 * drawn)), 8.0 - (cross * solved).sum(0)
        f = mean[:, None] + variance.sqrt()[:, None] * x
        each.append(torch.stack([(f.sigmoid() * w).sum(1), ((-f).sigmoid() * w).sum(1)]) / w.sum())
    return torch.stack(each).mean(0).log()


def test_rounds_with_classes_are_a_plain_loop_of_the_papers_formulas() -> None:
    """Down the tree of the features as received, a process a node; a class that is not there adds nothing."""
    skewed = lacking_classes()
    method = PFedGP(architecture("mlp:5", skewed), steps=3, lr=0.02, clip=0.2, draws=3, gibbs=2)

    def loss(chunk: ClientChunk, own: dict, step: int) -> Tensor:
        batch, (j,) = chunk.batch(), chunk.clients
        z, counts = features(dict(chunk.shared), batch.x[0]), torch.bincount(batch.y[0], minlength=3)
        means = torch.stack([z[batch.y[0] == k].sum(0) / counts[k].clamp_min(1) for k in range(3)])
        tree = class_tree(means[None], counts[None] > 0)[0]  # (C, C - 1): 1, -1, or 0 off the way to a class
        half = held_out(chunk, batch, 0.5, 2, step)  # counts and the tree come before
        assert half.given is not None
        rest = half.given.examples
        new, seen, kinds = features(own, half.x[0]), features(own, rest.x[0]), half.y[0]
        noise = half.given.noise(3, torch.float64)
        present, n = counts > 0, len(skewed.train[j])
        total = math.log((n + int(present.sum())) / (n + 3)) * torch.ones(len(new), dtype=torch.float64)
        for node in range(2):
            sign = tree[rest.y[0], node].double()
            below, side = sign != 0, tree[kinds, node]
            if not tree[:, node].any():
                continue
            k = rbf(seen[below], seen[below]) + 8 * NUGGET * torch.eye(int(below.sum()), dtype=torch.float64)
            with torch.no_grad():
                omega = logistic_precisions(k[None], sign[below][None], noise, f"node {node}", 2)[:, 0]
            right, left = log_sides((k, rbf(seen[below], new)), sign[below], omega)
            total = total + torch.where(side > 0, right, torch.where(side < 0, left, 0.0))
        return 0.0 * new.sum() - total.mean()  # there is no gradient where a client has one class

    check_rounds(method, skewed, loss)
