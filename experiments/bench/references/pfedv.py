"""One round of pFedV as a loop over clients."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from hierfl.inference.state import State
from hierfl.models import PFedV

from .work import Work, stacked, values_of


def latent_loop(work: Work[PFedV]) -> State:
    """One client after the other, with torch's own layers: cross entropy and KL to the encoder as broadcast (Eq. 7)."""
    s, net, results = work.method.settings, work.method.network, []
    assert net.encoder is not None
    reduction = "mean" if s.kl == "mean" else "sum"
    for j in range(work.clients):
        x, y = work.x[j], work.y[j]
        encoder, base, sent = work.module(net.encoder), work.module(net.base), work.module(net.encoder)
        weight, bias = (v.clone().requires_grad_() for v in work.split(work.personal["w_j_point"][j]))
        optimizer = work.sgd([*encoder.parameters(), *base.parameters(), weight, bias], s.lr)
        for _ in range(s.epochs):
            for index in torch.randperm(len(y), device=y.device).split(s.batch):
                mean, log_variance = encoder(x[index]).chunk(2, -1)
                with torch.no_grad():
                    prior_mean, prior_log_variance = sent(x[index]).chunk(2, -1)
                z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
                kl = 0.5 * (prior_log_variance - log_variance - 1) + 0.5 * (
                    (log_variance.exp() + (mean - prior_mean).square()) / prior_log_variance.exp()
                )
                loss = cross_entropy(base(z) @ weight.mT + bias, y[index])
                loss = loss + s.alpha * getattr(kl, reduction)(-1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        own = {**values_of(net.encoder, encoder), **values_of(net.base, base)}
        results.append({"w_j_point": torch.cat([weight.flatten(), bias]).detach(), **own})
    return stacked(results)
