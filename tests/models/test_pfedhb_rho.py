"""Where PFedHB's spreads of heads end: whatever the start, and what few clients leave open."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.baselines import fitted
from support.federations import blobs
from support.few_heads import CLASSES, FEATURES, drawn
from support.few_heads import fitted as few_fitted

from hierfl import UserError
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.models import PFedHB
from hierfl.models.pfedeb.head_nodes import design
from hierfl.models.pfedhb.heads import HeadSpreads
from hierfl.models.pfedhb.turns import Turns
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8}


def test_a_spread_at_which_heads_say_less_than_none_begins_again_at_a_tenth() -> None:
    rule = HeadSpreads("heads", "w_j", 10.0, Turns(), judged=True)
    eye = torch.eye(2, dtype=torch.float64)
    old = {
        "heads.log_rho": torch.tensor([5.0, 2.0]).double().log(), "heads.information": eye,
        "heads.restart": torch.zeros(1).double(),
    }  # fmt: skip
    state: dict[str, torch.Tensor] = {}
    updates = []
    for gain in (-50.0, -50.0, -50.0, 4.0):
        total = {"score": torch.zeros(2).double(), "information": 100 * eye, "gain": torch.tensor([gain]).double()}
        context = AggregationContext(
            num_clients=3,
            reported=torch.tensor(3.0),
            round=len(updates) + 1,
            prior_gradient=lambda names: {},
            rule_state=state,
            shared=old,
        )
        updates.append(rule.update(old, total, context))
    restarts = [bool(new["heads.restart"]) for new in updates]
    assert restarts == [False, True, False, False]  # a posterior settles first, and again
    torch.testing.assert_close(updates[1]["heads.log_rho"], old["heads.log_rho"] - math.log(10))
    torch.testing.assert_close(updates[3]["heads.log_rho"], old["heads.log_rho"], rtol=0, atol=0.01)


@pytest.mark.slow
@pytest.mark.cpu(5, "two fits of 31 rounds")
def test_the_start_does_not_matter_while_the_network_is_trained() -> None:
    fed = blobs([30] * 8)
    net = architecture("mlp:8", fed)
    rho = [fitted(PFedHB(net, **COMMON, sigma_0=s, draws=2), fed, 31).shared["heads.log_rho"] for s in (0.05, 5.0)]
    assert rho[0].max() > math.log(0.1)
    above = rho[0] > math.log(0.01)
    torch.testing.assert_close(rho[1][above], rho[0][above], rtol=0, atol=math.log(1.25))


@pytest.mark.cpu(4, "two fits of 31 rounds")
def test_rho_settles_where_a_quarter_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that were away have posteriors of another network, which say nothing of rho until they have moved.

    It is a little larger than where all report: w is a mean of two clients' heads, and moves with who they are.
    """
    fed, seen, update = blobs([30] * 8), [], HeadSpreads.update

    def followed(*given: Any) -> State:
        new = update(*given)
        seen.append((float(new["heads.log_rho"][0]), float(new["heads.restart"])))
        return new

    monkeypatch.setattr(HeadSpreads, "update", followed)
    net = architecture("mlp:8", fed)
    whole = fitted(PFedHB(net, **COMMON, draws=2, nodes="off"), fed, 31).shared["heads.log_rho"][0]
    fitted(PFedHB(net, **COMMON, draws=2, nodes="off"), fed, 31, participation=0.25)
    assert sum(restart for _, restart in seen) == 0
    settled = [log_rho - float(whole) for log_rho, _ in seen[-20:]]
    assert math.log(0.7) < min(settled) <= max(settled) < math.log(2.2)


def test_steps_of_parts_that_stay_out_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, taken = blobs([12, 9, 7]), []
    run = GaussianHead.run
    monkeypatch.setattr(
        GaussianHead, "run", lambda self, chunk, phase: (taken.append(chunk.round), run(self, chunk, phase))[1]
    )
    net = architecture("linear", fed)
    settings = {**COMMON, "shares": "auto", "heads": "auto", "nodes": "off"}
    fitted(PFedHB(net, **settings, judged=2), fed, 6)
    assert set(taken) <= {1, 2}
    assert {1, 2} <= set(taken)
    taken.clear()
    fitted(PFedHB(net, **COMMON, every=3, nodes="off"), fed, 6)
    assert taken == [1, 1, 4, 6]  # and in rounds that are evaluated, the first and the last
    with pytest.raises(UserError, match="every=3 changes nothing where heads, features and adapters are off"):
        PFedHB(net, every=3, heads="off")


def test_weights_of_nodes_are_the_marginal_likelihood_by_monte_carlo() -> None:
    """Twelve clients of five rows, w held: each client's p(y | rho) is an average over 10,000 heads."""
    run, _ = few_fitted(1, "on", "held", draws=2)
    federation, w, _ = drawn(1)
    log_rho, weight = run.shared["at_nodes.log_rho"][1:], run.shared["at_nodes.log_weight"][1:].log_softmax(-1)
    rng, cut = np.random.default_rng(0), CLASSES * FEATURES
    e = torch.tensor(rng.normal(size=(10_000, len(w))))
    z, base = design(2)
    height = []
    for rho in log_rho.exp():
        heads = w + e * torch.cat([rho[:1].expand(cut), rho[1:].expand(CLASSES)])
        log_likelihood = 0.0
        for index in federation.train:
            x, y = (v.double() if v.is_floating_point() else v for v in federation.examples(index))
            f = torch.einsum("np,kcp->knc", x, heads[:, :cut].unflatten(-1, (CLASSES, FEATURES))) + heads[:, None, cut:]
            density = f.log_softmax(-1)[:, range(len(y)), y].sum(-1)
            log_likelihood += float(density.logsumexp(0)) - math.log(len(e))
        height.append(log_likelihood + float(rho.log().sum() - rho.square().sum() / 200))
    expected = (torch.tensor(height) + base + 0.5 * z.square().sum(-1)).log_softmax(-1)
    estimate, true = (
        (q, q @ log_rho, (q @ (log_rho - q @ log_rho).square()).sqrt()) for q in (weight.exp(), expected.exp())
    )
    # The bound is looser where rho is large: its mean is half a standard deviation lower.
    assert bool((estimate[1] < true[1] + 0.02).all())
    torch.testing.assert_close(estimate[1], true[1], rtol=0, atol=0.3)
    torch.testing.assert_close(estimate[2], true[2], rtol=0.2, atol=0)
