"""One round of FedRep, written two other ways."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hierfl.inference.state import State
from hierfl.models import FedRep

from .work import Work, stacked, values_of


def alternating_loop(work: Work[FedRep]) -> State:
    """One client after the other, on tensors, the base's features computed once while the head moves."""
    s, results = work.method.settings, []
    for j in range(work.clients):
        x, y, base = work.x[j], work.y[j], work.module(work.method.network.base)
        weight, bias = (v.clone().requires_grad_() for v in work.split(work.personal["mu"][j]))
        with torch.no_grad():
            z = base(x)
        optimizer = work.sgd([weight, bias], s.lr)
        for _ in range(s.head_epochs):
            for index in torch.randperm(len(y), device=y.device).split(s.batch):
                optimizer.zero_grad()
                cross_entropy(z[index] @ weight.mT + bias, y[index]).backward()
                optimizer.step()
        weight, bias = weight.detach(), bias.detach()
        optimizer = work.sgd(base.parameters(), s.lr)
        for _ in range(s.epochs):
            for index in torch.randperm(len(y), device=y.device).split(s.batch):
                optimizer.zero_grad()
                cross_entropy(base(x[index]) @ weight.mT + bias, y[index]).backward()
                optimizer.step()
        results.append({"mu": torch.cat([weight.flatten(), bias]), **values_of(work.method.network.base, base)})
    return stacked(results)


def alternating_dataloader_loop(work: Work[FedRep]) -> State:
    """Trains as public code does: a DataLoader per client, features at each step, the whole network in every graph."""
    s, results = work.method.settings, []
    for j in range(work.clients):
        base = work.module(work.method.network.base)
        weight, bias = (v.clone().requires_grad_() for v in work.split(work.personal["mu"][j]))
        loader = DataLoader(TensorDataset(work.x[j], work.y[j]), batch_size=s.batch, shuffle=True)
        for moving, epochs in (([weight, bias], s.head_epochs), ([*base.parameters()], s.epochs)):
            optimizer = work.sgd(moving, s.lr)
            for leaf in (weight, bias, *base.parameters()):
                leaf.requires_grad_(any(leaf is parameter for parameter in moving))
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    cross_entropy(base(x) @ weight.mT + bias, y).backward()
                    optimizer.step()
        own = {"mu": torch.cat([weight.detach().flatten(), bias.detach()])}
        results.append({**own, **values_of(work.method.network.base, base)})
    return stacked(results)
