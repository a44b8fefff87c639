"""One round of pFedVEM, written three other ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, pad, softplus
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from hierfl.data.padding import buckets
from hierfl.inference.clients.minibatches import active_spans
from hierfl.inference.local.optimizers import narrow_optimizer
from hierfl.inference.state import State
from hierfl.models import PFedVEM
from hierfl.nn.likelihoods import Softmax

from .work import Work, stacked, values_of


def _head(work: Work[PFedVEM], rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """mu and pi to be trained, and rho by Eq. 8, (S, 1, d) and (S, 1, 1)."""
    own = {k: v[rows].unsqueeze(1).clone() for k, v in work.personal.items()}
    rho = work.method.update_rho({**work.shared, **own})
    return own["mu"].requires_grad_(), own["pi"].requires_grad_(), rho


def tensor_loop(work: Work[PFedVEM]) -> State:
    """One client after the other, on tensors: features cached, particles batched, no DataLoader."""
    s, results = work.method.settings, []
    for j in range(work.clients):
        x, y, base = work.x[j], work.y[j], work.module(work.method.network.base)
        many = y.repeat(s.particles)
        mu, pi, rho = (v.flatten() for v in _head(work, [j]))
        mu, pi = mu.detach().requires_grad_(), pi.detach().requires_grad_()
        with torch.no_grad():
            z = base(x)
        optimizer = work.sgd([mu, pi], s.head_lr)
        for _ in range(s.head_epochs):
            q = _normal(mu, softplus(pi))
            weight, bias = work.split(q.rsample((s.particles,)))
            logits = z @ weight.mT + bias.unsqueeze(1)
            loss = cross_entropy(logits.flatten(0, 1), many, reduction="sum") / s.particles
            loss = loss + kl_divergence(q, _normal(work.shared["w"], rho)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        q = _normal(mu.detach(), softplus(pi.detach()))
        optimizer = work.sgd(base.parameters(), s.base_lr)
        for _ in range(s.base_epochs):
            for index in torch.randperm(len(y), device=y.device).split(s.base_batch):
                weight, bias = work.split(q.sample((s.particles,)))
                logits = base(x[index]) @ weight.mT + bias.unsqueeze(1)
                loss = cross_entropy(logits.flatten(0, 1), y[index].repeat(s.particles))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        results.append(_result(work, mu, pi, base))
    return stacked(results)


def dataloader_loop(work: Work[PFedVEM]) -> State:
    """Trains as public code does: a DataLoader per client, which every epoch reads; features in each head epoch; one
    particle after the other; weight and bias apart.
    """
    s, results = work.method.settings, []
    row_loss = nn.CrossEntropyLoss(reduction="none")
    w, b = work.split(work.shared["w"])
    for j in range(work.clients):
        base = work.module(work.method.network.base)
        loader = DataLoader(TensorDataset(work.x[j], work.y[j]), batch_size=s.base_batch, shuffle=True)
        mu, pi, rho = (v.flatten() for v in _head(work, [j]))
        # the head's weight is (features, classes) here
        heads = [v.detach().clone() for flat in (mu, pi) for v in work.split(flat)]
        mu_w, mu_b, pi_w, pi_b = (v.mT.contiguous() if v.dim() == 2 else v for v in heads)
        leaves = [v.requires_grad_() for v in (mu_w, mu_b, pi_w, pi_b)]
        prior_w, prior_b = Normal(w.mT, rho.item()), Normal(b, rho.item())
        optimizer = work.sgd(leaves, s.head_lr)
        for _ in range(s.head_epochs):
            x, y = (torch.cat(parts) for parts in zip(*loader, strict=True))
            optimizer.zero_grad()
            with torch.no_grad():
                z = base(x)
            q_w, q_b = Normal(mu_w, softplus(pi_w)), Normal(mu_b, softplus(pi_b))
            loss = kl_divergence(q_w, prior_w).sum() + kl_divergence(q_b, prior_b).sum()
            for _ in range(s.particles):
                loss = loss + row_loss(z @ q_w.rsample() + q_b.rsample(), y).sum() / s.particles
            loss.backward()
            optimizer.step()
        q_w, q_b = Normal(mu_w.detach(), softplus(pi_w.detach())), Normal(mu_b.detach(), softplus(pi_b.detach()))
        optimizer = work.sgd(base.parameters(), s.base_lr)
        for _ in range(s.base_epochs):
            for x, y in loader:
                optimizer.zero_grad()
                z, total = base(x), torch.zeros((), device=x.device, dtype=x.dtype)
                for _ in range(s.particles):
                    total = total + row_loss(z @ q_w.sample() + q_b.sample(), y).mean() / s.particles
                total.backward()
                optimizer.step()
        mu, pi = (torch.cat([weight.mT.flatten(), bias]) for weight, bias in ((mu_w, mu_b), (pi_w, pi_b)))
        results.append(_result(work, mu, pi, base))
    return stacked(results)


def batched(work: Work[PFedVEM]) -> State:
    """Clients as rows, as hierfl does it and with its network code, but on bare tensors: what Pyro costs on top."""
    order = sorted(range(work.clients), key=lambda j: -len(work.y[j]))
    states: dict[int, State] = {}
    for first in range(0, len(order), work.chunk):
        rows = order[first : first + work.chunk]
        mu, pi, rho = _head(work, rows)
        sizes = [len(work.y[j]) for j in rows]
        for a, b in buckets(sizes):
            _batched_head(
                work, rows[a:b], mu[a:b].detach().requires_grad_(), pi[a:b].detach().requires_grad_(), rho[a:b]
            )
        bases = {
            k: v.expand(len(rows), 1, *v.shape).clone()
            for k, v in work.method.network.base.parameters_from(work.shared).items()
        }
        _batched_base(work, rows, mu.detach(), softplus(pi.detach()), bases)
        for r, j in enumerate(rows):
            own = {f"{work.method.network.base.name}.{k}": v[r, 0] for k, v in bases.items()}
            states[j] = {"mu": mu[r, 0].detach(), "pi": pi[r, 0].detach(), **own}
    return stacked([states[j] for j in range(work.clients)])


def _batched_head(work: Work[PFedVEM], rows: list[int], mu: Tensor, pi: Tensor, rho: Tensor) -> None:
    s, net = work.method.settings, work.method.network
    index, mask = work.federation.indices("train").padded(rows)
    x = pad_sequence([work.x[j] for j in rows], batch_first=True)
    y = work.federation.y[index]
    weights = net.base.parameters_from(work.shared)
    with torch.no_grad():
        z = net.base.apply(weights, x)
    optimizer = work.sgd([mu, pi], s.head_lr, fused=True)
    for _ in range(s.head_epochs):
        sigma = softplus(pi)
        w = mu + sigma * torch.randn((s.particles, *mu.shape), device=mu.device, dtype=mu.dtype)
        losses = -Softmax(net.head(w, z), validate_args=False).log_prob(y)
        loss = (losses if mask is None else losses * mask).sum() / s.particles
        loss = loss + kl_divergence(_normal(mu, sigma), _normal(work.shared["w"], rho)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _batched_base(work: Work[PFedVEM], rows: list[int], mu: Tensor, sigma: Tensor, bases: State) -> None:
    s, net = work.method.settings, work.method.network
    x, y = torch.cat([work.x[j] for j in rows]), torch.cat([work.y[j] for j in rows])
    sizes = [len(work.y[j]) for j in rows]
    starts = torch.tensor([0, *sizes[:-1]], device=x.device).cumsum(0)[:, None]
    plans = []
    for n in sizes:
        epochs = [pad(torch.randperm(n), (0, -n % s.base_batch), value=-1) for _ in range(s.base_epochs)]
        plans.append(torch.cat(epochs).view(-1, s.base_batch))
    places = pad_sequence(plans, padding_value=-1).to(x.device)  # (steps, S, B)
    optimizer = None
    for first, last, active in active_spans([len(plan) for plan in plans]):
        leaves = {k: v[:active].detach().requires_grad_() for k, v in bases.items()}
        if optimizer is None:
            optimizer = work.sgd(list(leaves.values()), s.base_lr, fused=True)
        else:
            narrow_optimizer(optimizer, list(leaves.values()))
        for step in range(first, last):
            places_now = places[step, :active]
            mask, at = places_now >= 0, (starts[:active] + places_now.clamp_min(0)).flatten()
            noise = torch.randn((s.particles, *mu[:active].shape), device=mu.device, dtype=mu.dtype)
            z = net.base.apply(leaves, x.index_select(0, at).unflatten(0, places_now.shape))
            output = net.head(mu[:active] + sigma[:active] * noise, z)
            losses = -Softmax(output, validate_args=False).log_prob(
                y.index_select(0, at).unflatten(0, places_now.shape)
            )
            loss = ((losses * mask).sum(-1) / mask.sum(-1)).sum() / s.particles
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _normal(loc: Tensor, scale: Tensor) -> Normal:
    """Unchecked, as hierfl's are: a check asks the device."""
    return Normal(loc, scale, validate_args=False)


def _result(work: Work[PFedVEM], mu: Tensor, pi: Tensor, base: nn.Module) -> State:
    return {"mu": mu.detach(), "pi": pi.detach(), **values_of(work.method.network.base, base)}
