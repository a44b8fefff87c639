"""Discrete latents of a client are summed out: values, derivatives, padding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pyro
import pytest
import torch
from pyro.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Delta,
    Dirichlet,
    MaskedMixture,
    MultivariateNormal,
    Normal,
    Poisson,
)
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError
from hierfl.models.any_model.evaluating import Clients
from hierfl.models.any_model.log_joint import client_log_joint
from hierfl.models.any_model.moments import moments
from hierfl.models.any_model.sites import read_sites
from hierfl.models.any_model.values import Draws, at_draws

F64 = torch.float64


def mixture(batch: ColumnBatch) -> None:
    share = pyro.sample("share", Dirichlet(torch.ones(2)))
    with pyro.plate("client", batch.num_clients, dim=-2):
        at = pyro.sample("at", Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            k = pyro.sample("k", Categorical(share))
            pyro.sample("y", Normal(torch.where(k == 1, at[..., 1], at[..., 0]), 1.0), obs=batch["y"])


def mixture_by_hand(z: Tensor, v: Tensor, y: Tensor) -> Tensor:
    share = torch.distributions.StickBreakingTransform()(z)
    rows = torch.stack([Normal(v[k], 1.0).log_prob(y) + share[k].log() for k in (0, 1)]).logsumexp(0).sum()
    return rows + Normal(torch.tensor([-1.0, 1.0], dtype=F64), 1.0).log_prob(v).sum()


def chain(batch: ColumnBatch) -> None:
    stay = pyro.sample("stay", Normal(torch.ones(2), 1.0).to_event(1)).sigmoid()
    with pyro.plate("client", batch.num_clients, dim=-2):
        at = pyro.sample("at", Normal(0.0, 1.0))
        active: Tensor | float = 0.5
        for t in pyro.markov(range(batch.width)):
            k = pyro.sample(f"k{t}", Bernoulli(active))
            with pyro.poutine.mask(mask=batch.present[..., t, None]):
                pyro.sample(f"y{t}", Normal(at + 2 * k, 1.0), obs=batch["y"][..., t, None])
            active = k * stay[1] + (1 - k) * (1 - stay[0])


def chain_by_hand(z: Tensor, v: Tensor, y: Tensor) -> Tensor:
    stay, paths = z.sigmoid(), []
    for ks in product((0, 1), repeat=len(y)):
        path = torch.log(torch.tensor(0.5 if len(y) else 1.0, dtype=F64))
        for t, k in enumerate(ks):
            if t:
                on = stay[1] if ks[t - 1] else 1 - stay[0]
                path = path + (on if k else 1 - on).log()
            path = path + Normal(v[0] + 2 * k, 1.0).log_prob(y[t])
        paths.append(path)
    return torch.stack(paths).logsumexp(0) + Normal(0.0, 1.0).log_prob(v).sum()


def classes(batch: ColumnBatch) -> None:
    """A class of the client, by which the prior of its mean differs, and an outlier of a row."""
    share = pyro.sample("share", Beta(2.0, 2.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        kind = pyro.sample("kind", Bernoulli(share))
        at = pyro.sample("at", Normal(4 * kind - 2, 1.0 + kind))
        with pyro.plate("data", batch.width, dim=-1):
            out = pyro.sample("out", Categorical(torch.tensor([0.8, 0.1, 0.1])))
            pyro.sample("y", Normal(at + kind, torch.tensor([1.0, 3.0, 9.0])[out]), obs=batch["y"])


def classes_by_hand(z: Tensor, v: Tensor, y: Tensor) -> Tensor:
    share, kinds = z.sigmoid()[0], []
    for kind, chance in ((0, 1 - share), (1, share)):
        rows = [
            Normal(v[0] + kind, torch.tensor(sd, dtype=F64)).log_prob(y) + torch.log(torch.tensor(weight, dtype=F64))
            for sd, weight in ((1.0, 0.8), (3.0, 0.1), (9.0, 0.1))
        ]
        own = Normal(4.0 * kind - 2, torch.tensor(1.0 + kind, dtype=F64)).log_prob(v[0]) + chance.log()
        kinds.append(own + torch.stack(rows).logsumexp(0).sum())
    return torch.stack(kinds).logsumexp(0)


def zeros(batch: ColumnBatch) -> None:
    """Zero inflation, whose rows are impossible under one of both values."""
    gate = pyro.sample("gate", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        rate = pyro.sample("rate", Normal(0.0, 1.0)).exp()
        with pyro.plate("data", batch.width, dim=-1):
            empty = pyro.sample("empty", Bernoulli(logits=gate))
            log_prob = Poisson(rate).log_prob(batch["count"])
            impossible = torch.where(batch["count"] == 0, 0.0, -torch.inf)
            pyro.factor("y", torch.where(empty == 1, impossible, log_prob))


def zeros_by_hand(z: Tensor, v: Tensor, y: Tensor) -> Tensor:
    gate, log_prob = z[0].sigmoid(), Poisson(v[0].exp()).log_prob(y)
    rows = torch.where(y == 0, (gate + (1 - gate) * log_prob.exp()).log(), (1 - gate).log() + log_prob)
    return rows.sum() + Normal(0.0, 1.0).log_prob(v).sum()


Y = torch.tensor([[0.3, -1.2, 2.0, 0.9], [1.1, 0.2, -0.4, 3.0], [0.0, 0.0, -2.0, 1.0]], dtype=F64)
COUNT = torch.tensor([[0.0, 1.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 4.0, 0.0]], dtype=F64)
MODELS = {
    "mixture": (mixture, mixture_by_hand, "y", Y), "chain": (chain, chain_by_hand, "y", Y),
    "classes": (classes, classes_by_hand, "y", Y), "zeros": (zeros, zeros_by_hand, "count", COUNT),
}  # fmt: skip


def clients_of(model: Callable, column: str, data: Tensor, mask: Tensor | None = None) -> Clients:
    design = ColumnDesign.from_columns([column])
    sites = read_sites(model, design.template(data))
    return Clients(model, sites, design, data[:, None], mask, torch.ones(len(data), len(sites.client_start), dtype=F64))


def points(clients: Clients, number: int) -> tuple[Tensor, Tensor]:
    p, q = len(clients.sites.start), len(clients.sites.client_start)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(number, len(clients.columns), p + q, generator=generator, dtype=F64)
    x, v = drawn.split([p, q], -1)
    return x, v


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_over_all_values(name: str) -> None:
    """Values, expected gradients and expected Hessians, for all draws and clients."""
    model, by_hand, column, data = MODELS[name]
    clients = clients_of(model, column, data)
    x, v = points(clients, 2)

    def hand(x: Tensor, v: Tensor) -> Tensor:
        return torch.stack([torch.stack([by_hand(x[k, j], v[k, j], data[j]) for j in range(3)]) for k in range(2)])

    torch.testing.assert_close(clients.log_joint(x, v), hand(x, v), rtol=1e-12, atol=1e-12)
    ours, theirs = moments(clients.log_joint, x, v), moments(hand, x, v)
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.hessian, theirs.hessian, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mixture", "zeros"])
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    model, _, column, data = MODELS[name]
    clients = clients_of(model, column, data)
    x, v = points(clients, 1)
    derivatives, step, p = moments(clients.log_joint, x, v), 1e-5, x.shape[-1]
    for i in range(p + v.shape[-1]):
        by = torch.zeros(p + v.shape[-1], dtype=F64)
        by[i] = step
        up, down = ((x + sign * by[:p], v + sign * by[p:]) for sign in (1, -1))
        slope = (clients.log_joint(*up) - clients.log_joint(*down))[0] / (2 * step)
        torch.testing.assert_close(derivatives.gradient[:, i], slope, rtol=1e-7, atol=1e-7)
        row = (moments(clients.log_joint, *up).gradient - moments(clients.log_joint, *down).gradient) / (2 * step)
        torch.testing.assert_close(derivatives.hessian[:, i], row, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_padding_counts_for_nothing(name: str) -> None:
    model, _, column, data = MODELS[name]
    mask = torch.tensor([[True, True, True, False]]).expand(3, 4)
    short, padded = clients_of(model, column, data[:, :3]), clients_of(model, column, data, mask)
    x, v = points(short, 2)
    torch.testing.assert_close(padded.log_joint(x, v), short.log_joint(x, v), rtol=1e-12, atol=1e-12)


def test_impossible_values_leave_derivatives_finite() -> None:
    """Both the values and the path to them have probability 0; a client of ones alone is possible by one of two."""

    def model(batch: ColumnBatch) -> None:
        chance = pyro.sample("chance", Beta(1.0, 1.0))
        with pyro.plate("client", batch.num_clients, dim=-2):
            at = pyro.sample("at", Normal(0.0, 1.0))
            k = pyro.sample("k", Categorical(torch.stack([chance, 1 - chance, torch.zeros_like(chance)])))
            j = pyro.sample("j", Categorical(torch.eye(3)[k]))
            with pyro.plate("data", batch.width, dim=-1):
                pyro.factor("y", torch.where(j == 2, -torch.inf, Normal(at + j, 1.0).log_prob(batch["y"])))

    clients = clients_of(model, "y", Y)
    derivatives = moments(clients.log_joint, *points(clients, 2))
    assert derivatives.height.isfinite().all()
    assert derivatives.gradient.isfinite().all()
    assert derivatives.hessian.isfinite().all()


def test_a_latent_whose_prior_is_summed_over_has_no_centring() -> None:
    sites = clients_of(classes, "y", Y).sites
    assert not sites.centred
    assert sites.discrete == (("kind", "client"), ("out", "data"))


def test_a_long_chain_is_linear_in_its_length() -> None:
    """100 steps: 2^100 paths. Beside the forward recursion."""
    y = torch.randn(1, 100, generator=torch.Generator().manual_seed(0), dtype=F64)
    clients = clients_of(chain, "y", y)
    x, v = points(clients, 1)
    stay, at = x[0, 0].sigmoid(), v[0, 0, 0]
    change = torch.stack([torch.stack([stay[0], 1 - stay[0]]), torch.stack([1 - stay[1], stay[1]])]).log()
    emitted = Normal(torch.stack([at, at + 2]), 1.0).log_prob(y[0, :, None])
    forward = emitted[0] + torch.log(torch.tensor(0.5, dtype=F64))
    for row in emitted[1:]:
        forward = (forward[:, None] + change).logsumexp(0) + row
    expected = forward.logsumexp(0) + Normal(0.0, 1.0).log_prob(at)
    torch.testing.assert_close(clients.log_joint(x, v)[0, 0], expected, rtol=1e-12, atol=1e-12)


def test_sums_mix_with_other_distributions() -> None:
    """A point mass and a normal of several dimensions, beside a discrete latent in a plate of items."""

    def model(batch: ColumnBatch) -> None:
        shift = pyro.sample("shift", MultivariateNormal(torch.zeros(2), torch.eye(2)))
        with pyro.plate("client", batch.num_clients, dim=-2), pyro.plate("item", 2, dim=-3):
            k = pyro.sample("k", Bernoulli(0.3))
            pyro.sample("fixed", Delta(k), obs=torch.ones(2, 1, 1))
            pyro.sample("m", MaskedMixture(k > 0, Normal(shift[0], 1.0), Normal(shift[1], 1.0)), obs=torch.zeros(()))
            with pyro.plate("data", batch.width, dim=-1):
                pyro.sample("y", Normal(k, 1.0), obs=batch["y"])

    clients = clients_of(model, "y", Y)
    assert clients.sites.depth == 3
    x, v = points(clients, 1)
    log_density = Normal(1.0, 1.0).log_prob(Y).sum(-1) + Normal(x[0, :, 1], 1.0).log_prob(torch.zeros(()))
    expected = 2 * (log_density + torch.log(torch.tensor(0.3, dtype=F64)))
    torch.testing.assert_close(clients.log_joint(x, v)[0], expected, rtol=1e-12, atol=1e-12)


def test_a_scaled_sum_is_refused() -> None:
    def model(batch: ColumnBatch) -> None:
        with pyro.plate("client", batch.num_clients, dim=-2), pyro.poutine.scale(scale=0.5):
            k = pyro.sample("k", Bernoulli(0.3))
            with pyro.plate("data", batch.width, dim=-1):
                pyro.sample("y", Normal(k, 1.0), obs=batch["y"])

    with pytest.raises(UserError, match="'k' is scaled"):
        clients_of(model, "y", Y)


def test_a_clients_log_joint_alone() -> None:
    clients = clients_of(mixture, "y", Y)
    x, v = points(clients, 1)
    alone = client_log_joint(
        mixture, clients.sites, x[0, 1], v[0, 1], ColumnBatch({"y": Y[1:2]}), torch.ones(2, dtype=F64)
    )
    torch.testing.assert_close(alone, clients.log_joint(x, v)[0, 1])


def test_log_likelihoods_are_of_rows_where_all_discrete_latents_are() -> None:
    """Of a mixture each row's own; of a chain, of a client's class and of two sites one number a client."""
    clients = clients_of(mixture, "y", Y)
    x, v = points(clients, 2)
    log_likelihood = at_draws(clients, Draws(x[:, 0], v), lambda seen: seen.log_prob)["y"]
    for draw, client, row in product(range(2), range(3), range(4)):
        alone = mixture_by_hand(x[draw, 0], v[draw, client], Y[client, row, None])
        expected = alone - Normal(torch.tensor([-1.0, 1.0], dtype=F64), 1.0).log_prob(v[draw, client]).sum()
        torch.testing.assert_close(log_likelihood[draw, client, row], expected, rtol=1e-12, atol=1e-12)
    for model, by_hand, name in [(chain, chain_by_hand, "y0 to y3"), (classes, classes_by_hand, "y")]:
        clients = clients_of(model, "y", Y)
        x, v = points(clients, 2)
        log_likelihood = at_draws(clients, Draws(x[:, 0], v), lambda seen: seen.log_prob)
        assert log_likelihood.keys() == {name}
        own = by_hand(x[1, 0], v[1, 2], Y[2]) - by_hand(x[1, 0], v[1, 2], Y[2, :0])
        torch.testing.assert_close(log_likelihood[name][1, 2], own, rtol=1e-12, atol=1e-12)
        assert log_likelihood[name].shape == (2, 3)


def test_a_factor_is_no_observed_site() -> None:
    clients = clients_of(zeros, "count", COUNT)
    x, v = points(clients, 2)
    assert at_draws(clients, Draws(x[:, 0], v), lambda seen: seen.log_prob) == {}
