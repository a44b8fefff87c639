"""PFedHB's parts: what they gain on held rows, and the posterior of features."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.baselines import fitted, rows_of
from support.federations import blobs
from support.part_simulations import PARTS, entered
from torch.nn.functional import log_softmax

from hierfl import Federation, UserError
from hierfl.data.held_fold import held_fold
from hierfl.models import FedAvg, PFedHB
from hierfl.models.pfedhb.features import Predictor
from hierfl.models.pfedhb.parts import NULLS, held_gains
from hierfl.models.pfedhb.report import part_lines
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8}
AUTO = {**COMMON, **dict.fromkeys(PARTS, "auto")}


@pytest.fixture(scope="module")
def fed() -> Federation:
    return blobs([40, 31, 22, 9, 4])


def test_a_fold_is_a_third_of_a_clients_rows_wherever_it_is(fed: Federation) -> None:
    fold = held_fold(fed)
    assert list(fold.rows.sizes) == [13, 10, 7, 3, 1]
    for whole, rest, held_out in zip(fed.train, fold.rest.train, fold.rows, strict=True):
        assert sorted([*rest.tolist(), *held_out.tolist()]) == sorted(whole.tolist())
    alone = held_fold(fed.select([2]))
    assert torch.equal(alone.rows[0], fold.rows[2])
    assert held_fold(fed) is fold


@pytest.mark.cpu(5, "fits of all parts, twice")
def test_nothing_is_trained_on_the_fold_until_parts_are_decided_and_all_of_it_after(fed: Federation) -> None:
    held_out = torch.cat(list(held_fold(fed).rows))
    y = fed.y.clone()
    y[held_out] = (y[held_out] + 1) % 3
    wrong = dataclasses.replace(fed, y=y)
    net = architecture("linear", fed)
    names = ("w", "shares.log_beta", "shares.log_pooled", "heads.log_rho", "common")
    for rounds, same in ((2, True), (3, False)):
        a, b = (fitted(PFedHB(net, **COMMON, heads="auto", judged=2), f, rounds).shared for f in (fed, wrong))
        assert all(torch.equal(a[k], b[k]) for k in names) == same
        assert not torch.equal(a["parts.gain"], b["parts.gain"])


def test_gains_are_log_densities_of_the_fold(fed: Federation) -> None:
    net = architecture("linear", fed)
    generator = torch.Generator().manual_seed(0)
    method = PFedHB(net, **AUTO)
    drawn = torch.randn((5, 1, 1, 16, net.head.d), generator=generator, dtype=torch.float64)
    w, shift = (torch.randn(net.head.d, generator=generator, dtype=torch.float64) for _ in range(2))
    counts = torch.randint(0, 9, (5, 1, 3), generator=generator).double()
    null = NULLS.index((2.5, True))
    chunk = rows_of(method, fed, w=w, common=shift, w_j_draws=drawn, class_counts=counts)
    chunk = dataclasses.replace(chunk, shared={**chunk.shared, "parts.null": torch.tensor([float(null)])})
    gains, nulls, rows = held_gains(chunk, PARTS)
    assert rows.tolist() == [13, 10, 7, 3, 1]
    population = method.shares.population(chunk.shared, counts.squeeze(1))
    for row in range(5):
        x, y = fed.examples(held_fold(fed).rows[row])
        z = torch.cat([x, torch.ones(len(x), 1)], 1).double()

        def density(
            head: torch.Tensor, off: torch.Tensor | float = 0.0, scale: float = 2.5, z: torch.Tensor = z, y=y
        ) -> torch.Tensor:
            k = 3 * (z.shape[1] - 1)
            matrix = torch.cat([head[..., :k].unflatten(-1, (3, -1)), head[..., k:, None]], -1)
            return log_softmax(scale * (z @ matrix.mT) + off, -1)[..., range(len(y)), y]

        base = density(w + shift).sum()
        share = (1 - 1e-4) * population.mean[row] * 3 + 1e-4
        expected = [
            density(w + shift, share.log()).sum() - base,
            (density(drawn[row, 0, 0]).logsumexp(0) - math.log(16)).sum() - base,
            torch.tensor(0.0).double(),
        ]
        torch.testing.assert_close(gains[row], torch.stack(expected))
        torch.testing.assert_close(nulls[row, null], base - density(w, scale=1.0).sum())
        assert nulls[row, 0] == 0


def test_features_have_laplaces_posterior_and_the_score_of_its_evidence() -> None:
    fed = blobs([60, 30])
    net = architecture("linear", fed)
    w = torch.randn(net.head.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    method = PFedHB(net, **COMMON, features="on", heads="off", shares="off")
    p = net.head.features

    log_tau = torch.tensor([-0.5, -1.0], dtype=torch.float64)
    chunk = rows_of(method, fed, **{"w": w, "features.log_rho": log_tau})
    for _ in range(4):
        chunk = method.features.step().run(chunk, 0)
    values, v, predictor = chunk.values, chunk.values["v"].squeeze(1), Predictor.for_chunk(chunk, method.features)
    h = predictor.slope_and_curvature(v)[1]
    # slope and curvature are the derivatives
    u = (v + 0.1).requires_grad_()
    height = predictor.height(u)
    slope, curve = predictor.slope_and_curvature(u.detach())
    torch.testing.assert_close(torch.autograd.grad(height.sum(), u)[0], slope)
    hessian = torch.autograd.functional.hessian(lambda a: predictor.height(a).sum(), u.detach())
    expected = curve + torch.diag(predictor.tau**-2)
    torch.testing.assert_close(-torch.stack([hessian[r, :, r] for r in range(2)]), expected)
    assert predictor.slope_and_curvature(v)[0].abs().max() < 1e-6  # the mode
    # the score is the evidence's where the curvature is held, the information twice the squares of the marginal one
    free = log_tau.clone().requires_grad_()
    tau = free.exp().repeat_interleave(p)
    log_det = torch.linalg.slogdet(torch.eye(2 * p) + tau[:, None] * h * tau)[1]
    evidence = -0.5 * (v / tau).square().sum(-1) - 0.5 * log_det
    expected = torch.stack([torch.autograd.grad(e, free, retain_graph=True)[0] for e in evidence])
    torch.testing.assert_close(values["v_j/score"].squeeze(1), expected)
    marginal = tau[:, None] * (h - h @ torch.linalg.inv(h + torch.diag(tau**-2)) @ h) * tau
    blocks = 2 * marginal.square().unflatten(-1, (2, p)).sum(-1).unflatten(1, (2, p)).sum(2)
    torch.testing.assert_close(values["v_j/information"].squeeze(1), blocks.detach())
    # draws have its covariance
    drawn = values["v_j_draws"]
    assert drawn.shape == (2, 1, 1, 1, 2 * p)
    final = method.features.step(final=True)
    many = dataclasses.replace(final, final=4000).run(rows_of(method, fed, **{"w": w, "features.log_rho": log_tau}), 0)
    kept = many.values["v_j_draws"][0, 0, 0]
    covariance = torch.linalg.inv(h[0] + torch.diag(predictor.tau**-2))
    torch.testing.assert_close(kept.mean(0), v[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cov(kept.T), covariance, atol=0.1 * float(covariance.diagonal().max()), rtol=0)


@pytest.mark.parametrize("truth", ["none", "shares"])
def test_a_part_enters_where_it_is_in_the_data(truth: str) -> None:
    metrics = entered(truth, 3, "held", judged=6)
    assert [metrics[f"entered_{part}"] for part in PARTS] == [float(part == truth) for part in PARTS]
    line = part_lines({**metrics, "rounds": 6})[0]
    assert "label shares: " in line
    assert ("none is in the model" in line) == (truth == "none")
    assert np.isfinite(list(metrics.values())).all()


def test_what_is_not_auto_is_as_it_was_and_wrong_settings_are_said(fed: Federation) -> None:
    net = architecture("linear", fed)
    with pytest.raises(UserError, match="judged=7 changes nothing where no part is auto"):
        PFedHB(net, judged=7)
    with pytest.raises(UserError, match="512 features at most, not 600"):
        PFedHB(architecture("mlp:600", fed), features="auto")
    for how, line in (({"dp": "client", "epsilon": 8.0}, "on or off, not auto"), ({"robust": "median"}, "'parts'")):
        with pytest.raises(UserError, match=line):
            fitted(PFedHB(net, **AUTO), fed, 1, **how)
    plain = fitted(PFedHB(net, **COMMON, shares="off", heads="off"), fed, 2)
    fedavg = fitted(FedAvg(net, **COMMON), fed, 2)
    assert plain.evaluations[-1]["pm_nll"] == fedavg.evaluations[-1]["pm_nll"]
    assert not any(k.startswith("parts") for k in plain.shared)
