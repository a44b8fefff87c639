"""Problems with known answers, and what tests of the baselines share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from support.federations import blobs
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.inference import Method, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.engines.distributed import DistributedEngine
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.result import Run
from hierfl.inference.server.exchange import Exchange
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

NOISE = 0.5
WHOLE = 10_000  # a batch that is all of anybody's data


def lacking_classes() -> Federation:
    """Clients of very different sizes; only the first two have class 2, the third has class 1 alone."""
    fed = blobs([23, 12, 9, 14, 5])
    had = [(0, 1, 2), (2, 0), (1,), (0, 1), (1, 0)]
    train = [torch.cat([t[fed.y[t] == k] for k in classes]) for t, classes in zip(fed.train, had, strict=True)]
    return dataclasses.replace(fed, train=train)


def features(values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The base of mlp:5, by hand."""
    return (x @ values["base.1.weight"].T + values["base.1.bias"]).relu()


def logits(head: Tensor, z: Tensor) -> Tensor:
    """A head of three classes on five features, by hand."""
    return z @ head[:15].view(3, 5).T + head[15:]


def rbf(a: Tensor, b: Tensor, scale: float = 8.0, length: float = 1.0) -> Tensor:
    """The kernel of pFedGP by hand, (n, m), of features of length 1, or 0 where all are 0."""
    a, b = (v / v.norm(dim=-1, keepdim=True).clamp_min(1e-12) for v in (a, b))
    return scale * (((a[:, None] - b[None]) ** 2).sum(-1) / (-2 * length**2)).exp()


def fitted(method: Method, fed: Federation, rounds: int, **options: object) -> Run:
    return fit(method, fed, rounds=rounds, dtype=torch.float64, progress=False, evaluate_every=10_000, **options)


@contextmanager
def one_rank() -> Iterator[None]:
    """This process is the only one of a fit that ranks share."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def begin_on_a_rank(method: Method, fed: Federation) -> None:
    """A fit on ranks, as far as what they send can be."""
    start = InitialWeights.for_network(method.network, 0)
    shared = method.shared(start)
    with one_rank():
        engine = DistributedEngine(method, fed, Options(dtype=torch.float64))
        engine.begin(shared, dict(method.personal(start)), Exchange(method.exchange(), {}, method.expand, shared))


def rows_of(method: Method, fed: Federation, **changed: Tensor) -> ClientChunk:
    """All clients as they are when a fit begins, but for some values."""
    start = InitialWeights.for_network(method.network, 0)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    order = sorted(range(fed.clients), key=lambda j: -len(fed.train[j]))
    personal = method.personal(start).items()
    rows = {k: v.double().expand(len(order), 1, *v.shape).clone() for k, v in personal}
    chunk = ClientChunk(method, fed, order, 1, 0, {k: changed.get(k, v) for k, v in shared.items()}, rows)
    return chunk.put({k: v for k, v in changed.items() if k in rows})


class Quadratics:
    """Linear regressions as quadratics: minus the log likelihood of a client is w^T A w / 2 - b^T w + c."""

    def __init__(self, fed: Federation) -> None:
        self.n = torch.tensor([float(len(t)) for t in fed.train], dtype=torch.float64)
        self.A, self.b = [], []
        for index in fed.train:
            x, y = fed.examples(index)
            x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
            self.A.append(x.T @ x / NOISE**2)
            self.b.append(x.T @ y / NOISE**2)

    def around(self, w: Tensor, precisions: Tensor) -> Tensor:
        """argmin of minus the log joint in each w_j ~ N(w, 1 / precision_j), (J, d)."""
        eye = torch.eye(len(w), dtype=torch.float64)
        pairs = zip(self.A, self.b, precisions, strict=True)
        return torch.stack([torch.linalg.solve(A + p * eye, b + p * w) for A, b, p in pairs])

    def pooled(self, weights: Tensor) -> Tensor:
        """argmin of a weighted sum of them, (d,)."""
        A = sum(c * a for c, a in zip(weights, self.A, strict=True))
        return torch.linalg.solve(A, sum(c * b for c, b in zip(weights, self.b, strict=True)))


def slope_at(net: Architecture, w: Tensor, x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    """The gradient of the mean loss of some examples in the weights."""
    return grad(lambda u: cross_entropy(net(u, x[batch][None])[0], y[batch]))(w)


def linear(fed: Federation) -> Architecture:
    return architecture("linear", fed, noise=NOISE)


def assert_resumed_is_the_same(method: Method, fed: Federation, folder: Path, participation: float) -> None:
    """Four rounds are those of two and then two from the checkpoint, bit for bit."""
    options = {"participation": participation, "progress": False}
    whole = fit(method, fed, rounds=4, **options)
    fit(method, fed, rounds=2, folder=folder, **options)
    again = fit(method, fed, rounds=4, folder=folder, resume=True, **options)
    for expected, other in ((whole.shared, again.shared), (whole.personal, again.personal)):
        assert expected.keys() == other.keys()
        assert all(torch.equal(v, other[k]) for k, v in expected.items())
