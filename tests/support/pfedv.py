"""Bars in noise, pFedV's method on them, and its network as anybody would write it."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import PFedV
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator

SPEC = "bncnn:3,4:8,z-norm"


def pictures(
    sizes: tuple[int, ...] = (13, 8, 5), seed: int = 0, test: float = 0.0, contrast: bool = False
) -> Federation:
    """Three bars in noise, three classes; with contrast, every client has its own."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    y, who = rng.integers(0, 3, n), np.repeat(np.arange(len(sizes)), sizes)
    y[:3] = [0, 1, 2]
    x = 0.5 * rng.normal(size=(n, 1, 6, 6))
    for k in range(3):
        x[y == k, :, 2 * k : 2 * k + 2] += 1.5
    if contrast:
        x = x * np.array([1.0, -1.0, 3.0, -3.0])[who][:, None, None, None]
    return Federation.from_arrays(x.astype(np.float32), y, np.array([f"c{j}" for j in who]), test=test)


def method_of(cls: type[PFedV], fed: Federation, **settings: object) -> PFedV:
    return cls(architecture(SPEC, fed, latent=True), **settings)


def states(method: Method, fed: Federation) -> tuple[dict, dict]:
    """Shared values; rows for all clients with copies of everything trained, all different from what was sent."""
    start, rows = InitialWeights.for_network(method.network, 5), {}
    shared = {k: v.double() for k, v in method.shared(start).items()}
    for k, v in {**shared, **method.personal(start)}.items():
        noise = 0.2 * torch.randn((fed.clients, 1, *v.shape), generator=generator(k), dtype=torch.float64)
        rows[k] = (v + noise).abs() + 0.1 if k.endswith("running_var") else v + noise
    return shared, rows


class Torch(nn.Module):
    """The network as anybody would write it, for one client."""

    def __init__(self, network: Architecture, classes: int = 3) -> None:
        super().__init__()
        self.encoder, self.base = copy.deepcopy(network.encoder.module), copy.deepcopy(network.base.module)
        with torch.random.fork_rng(devices=[]):
            self.head = nn.Linear(network.head.features, classes)
        self.double().requires_grad_(True)

    def load(self, values: dict[str, Tensor], head: Tensor) -> Torch:
        f = self.head.in_features
        with torch.no_grad():
            for name, value in [*self.named_parameters(), *self.named_buffers()]:
                if name in values:
                    value.copy_(values[name])
            self.head.weight.copy_(head[: 3 * f].view(3, f))
            self.head.bias.copy_(head[3 * f :])
        return self

    def flat_head(self) -> Tensor:
        return torch.cat([self.head.weight.flatten(), self.head.bias])

    def loss(self, x: Tensor, y: Tensor, xi: Tensor, alpha: float, sent: nn.Module | None, mean: bool) -> Tensor:
        """Mean of CE + alpha KL, Eq. 7, the KL by the closed form for two Gaussians."""
        mu, log_var = self.encoder(x).chunk(2, -1)
        z = mu + (0.5 * log_var).exp() * xi
        if sent is None:
            mu_s, log_var_s = torch.zeros_like(mu), torch.zeros_like(mu)
        else:
            with torch.no_grad():
                mu_s, log_var_s = sent(x).chunk(2, -1)
        kl = 0.5 * (log_var_s - log_var + (log_var.exp() + (mu - mu_s) ** 2) / log_var_s.exp() - 1)
        kl = kl.mean(-1) if mean else kl.sum(-1)
        return (cross_entropy(self.head(self.base(z)), y, reduction="none") + alpha * kl).mean()
