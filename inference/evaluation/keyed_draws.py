"""Draws from any distribution, as a function of keys alone."""

from __future__ import annotations

from typing import Any

import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Bernoulli, Independent, MultivariateNormal, Normal, Poisson

from hierfl.nn.likelihoods import Softmax
from hierfl.rng import ClientNoise, key

#: distributions that are drawn as a function of the rows' own noise
BY_ROW = (Normal, MultivariateNormal, Bernoulli, Poisson, Softmax)


def has_rows(fn: Any) -> bool:
    """Whether :func:`sample_keyed` draws each row of this distribution by itself."""
    return isinstance(fn.base_dist if isinstance(fn, Independent) else fn, BY_ROW)


def sample_keyed(fn: Any, noise: ClientNoise, site: str) -> Tensor:
    """Draws (K, S, n, *event) from any distribution that can sample, as a function of the noise's keys alone.

    A distribution whose parameters carry K draws already gives one for each of them. One that has no :func:`has_rows`
    is drawn by torch, which reads its global generator: it is borrowed, seeded by the first row's key, and given back.

    Args:
        fn: what to draw from, batch shape ([K,] S, n).
        noise: of the rows; what is padded is drawn, too.
        site: whose streams are read.
    """
    if has_rows(fn):
        return _from_noise(fn, noise, site)
    shape = torch.Size() if len(fn.batch_shape) > 2 else torch.Size((noise.particles,))
    device, seed = noise.keys.device, key(*noise.stream, int(noise.keys[0]), site)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # torch.manual_seed tells every accelerator, whether it is there or not: a millisecond each time.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        drawn: Tensor = fn.sample(shape)
        return drawn


def _from_noise(fn: Any, noise: ClientNoise, site: str) -> Tensor:
    base = fn.base_dist if isinstance(fn, Independent) else fn
    width = fn.batch_shape[-1]
    if isinstance(base, Normal):
        return base.loc + base.scale * noise.normal(site, width, fn.event_shape)
    if isinstance(base, MultivariateNormal):
        z = noise.normal(site, width, fn.event_shape)
        return base.loc + (base.scale_tril @ z.unsqueeze(-1)).squeeze(-1)
    u = noise.uniform(site, width, fn.event_shape)
    if isinstance(base, Bernoulli):
        return (u < base.probs).to(u.dtype)
    if isinstance(base, Softmax):  # the first class at which the sum of probabilities passes u
        passed = base.probs.cumsum(-1) < u[..., None]
        return passed.sum(-1).clamp(max=base.probs.shape[-1] - 1)
    rate = base.rate.expand(u.shape)
    return torch.from_numpy(stats.poisson.ppf(u.cpu().numpy(), rate.cpu().numpy())).to(u)
