"""Invariant 1, restriction: the clients' restricted ELBOs sum to the joint one."""

from __future__ import annotations

import torch
from pyro import poutine
from support.cases import METHODS
from support.methods import network_for, noise_for, states
from support.representatives import over_methods
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from hierfl import Federation
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import client_view
from hierfl.models import (
    PFedVEM,
)
from hierfl.nn.architecture import Architecture
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict


@over_methods(METHODS)
def test_sum_of_client_elbos_is_the_joint_elbo(case: tuple, small: Federation) -> None:
    """One row at a time and summed, plus log p(globals) once, against Pyro's own log densities of the whole plate."""
    method = case[0](network_for(case[0], small), **case[1])
    shared, rows = states(method, small)
    everyone = list(range(small.clients))
    alone = [
        elbo(
            method,
            small.batch([j]),
            client_view(shared, {k: v[[j]] for k, v in rows.items()}),
            noise_for(small, [j], counts=True),
            analytic=False,
        )
        for j in everyone
    ]
    batch = small.batch(everyone)
    ours = torch.cat(alone).sum() + global_log_prob(
        method, small.template(), shared, {k: v[:1] for k, v in rows.items()}
    )
    values = client_view(shared, rows)
    with Restrict(values, draw=draw_with(noise_for(small, everyone, counts=True))):
        q = poutine.trace(method.guide).get_trace(batch)
    with Restrict(values):  # parameters only: the latents below are Pyro's to fix
        p = poutine.trace(poutine.replay(poutine.condition(method.model, data=shared), trace=q)).get_trace(batch)
    assert torch.isclose(ours, p.log_prob_sum() - q.log_prob_sum(), rtol=1e-6)


def test_analytic_kl_is_torchs_and_agrees_with_its_monte_carlo_estimate(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net)
    shared, rows = states(method, small)
    batch, everyone = small.batch(range(small.clients)), list(range(small.clients))
    values = {**shared, **rows}
    latents = guide_latents(method, batch, values, noise_for(small, everyone, 4000))
    w_j = latents["w_j"].value
    logits = net.head(w_j, net.base.apply(net.base.parameters_from(values), batch.x))
    labels = batch.y.expand(logits.shape[:-1])
    nll = cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
    nll = (nll * batch.mask).sum(-1).mean(0)
    kl = kl_divergence(
        Independent(Normal(rows["mu"], softplus(rows["pi"])), 1),
        Independent(Normal(shared["w"].expand_as(rows["mu"]), rows["rho"].expand_as(rows["mu"])), 1),
    ).squeeze(1)
    exact = elbo(method, batch, values, noise_for(small, everyone, 4000))
    assert torch.allclose(exact, -nll - kl, rtol=1e-10)
    sampled = elbo(method, batch, values, noise_for(small, everyone, 4000), analytic=False)
    log_ratio = (
        Normal(rows["mu"], softplus(rows["pi"])).log_prob(w_j) - Normal(shared["w"], rows["rho"]).log_prob(w_j)
    ).sum(-1)
    error = log_ratio.std(0).squeeze(-1) / 4000**0.5
    assert ((exact - sampled).abs() < 5 * error).all()
