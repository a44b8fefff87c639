"""pFedVMP: the objective and rounds by hand, and its priors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pfedvmp import CLASSES, Torch, bumps, method_of
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.inference.server.participation import draw_participants
from hierfl.inference.state import client_view
from hierfl.models import FedPer, PFedVMP
from hierfl.nn.networks.build import architecture


@pytest.mark.parametrize("distance", ["sum", "mean"])
def test_the_objective_is_equation_9(distance: str) -> None:
    """Value up to the Gaussians' constant, and every gradient; a class without a centroid pulls at nothing."""
    fed = bumps().to(dtype=torch.float64)
    method = method_of(fed, xi=0.7, distance=distance)
    assert fed.classes == CLASSES
    assert {int(k) for k in fed.y[fed.train[2]]} == {1, 2}
    start, rng = InitialWeights.for_network(method.network, 3), torch.Generator().manual_seed(0)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    mu = torch.randn(CLASSES, method.features, dtype=torch.float64, generator=rng)
    shared |= {"centroids": mu, "counts": torch.tensor([3.0, 0.0, 2.0, 1.0], dtype=torch.float64)}
    chunk = ClientChunk(method, fed, [0, 1, 2], 1, 0, shared, {})
    chunk = chunk.put({"w_j_point": torch.randn(3, 1, method.network.head.d, dtype=torch.float64, generator=rng)})
    chunk = chunk.own([k for k in shared if k.startswith("base")])
    leaves = {k: v.requires_grad_() for k, v in chunk.values.items()}
    ours = elbo(method, chunk.batch(), client_view(shared, leaves), None)
    gradients = torch.autograd.grad(-ours.sum(), list(leaves.values()))
    known, xi = shared["counts"] > 0, 0.7 / (method.features if distance == "mean" else 1)
    spread = torch.distributions.Normal(0.0, method.spread)
    for j in range(3):
        client = Torch(method, {k: v[j, 0] for k, v in leaves.items()}, leaves["w_j_point"][j, 0])
        index = fed.train[j]
        theirs = client.loss(fed.x[index].double(), fed.y[index], xi, mu, known)
        constant = spread.log_prob(torch.tensor(0.0)).double() * method.features * known[fed.y[index]].sum()
        assert torch.isclose(-ours[j] + constant, theirs, rtol=1e-6)
        theirs.backward()
        by_name = dict(zip(leaves, (g[j, 0] for g in gradients), strict=True))
        for name, p in client.base.named_parameters():
            assert torch.allclose(by_name[f"base.{name}"], p.grad, rtol=1e-9, atol=1e-12), name
        head = torch.cat([client.head.weight.grad.flatten(), client.head.bias.grad])
        assert torch.allclose(by_name["w_j_point"], head, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("precision", "more"),
    [("full", {}), ("full", {"alpha": 0.3, "cutoff": 0.05, "prior_precision": 2.0}), ("diagonal", {}), ("count", {}),
     ("equal", {"prior_precision": 0.5}), ("full", {"distance": "mean", "momentum": 0.5, "prior_precision": 2.0})],
)  # fmt: skip
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_rounds_by_hand(precision: str, more: dict[str, object], participation: float) -> None:
    """Rounds, client after client in plain torch, products of densities by their formula.

    Where half of them report, classes are first heard of late, and missing in later rounds.
    """
    fed, seed, rounds = bumps(), 3, 3 if participation == 1 else 6
    given = {"xi": 0.2, "distance": "sum", "lr": 0.05, "batch": 4, "epochs": 2, **more}
    method = method_of(fed, precision=precision, **given)
    run = fit(
        method, fed, rounds=rounds, chunk=3, dtype=torch.float64, progress=False, seed=seed, participation=participation
    )
    s, start, d = method.settings, InitialWeights.for_network(method.network, 3), method.features
    base = {k: v.double() for k, v in start.base.items()}
    heads = dict.fromkeys(range(3), 0.1 * start.head)
    mu, counts = torch.zeros(CLASSES, d, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64)
    xi, kept = s.xi / (d if s.distance == "mean" else 1), 0
    for t in range(1, rounds + 1):
        reporting = draw_participants(fed.keys, t, seed, participation, 1)
        n_all = sum(fed.sizes()[j] for j in reporting)
        totals: dict[str, Tensor] = {}
        top = s.prior_precision * torch.eye(d).double().repeat(CLASSES, 1, 1)
        down = torch.zeros(CLASSES, d, dtype=torch.float64)
        new_counts = torch.zeros_like(counts)
        for j, n in enumerate(fed.sizes()):
            client = Torch(method, base, heads[j])
            optimizer = torch.optim.SGD(client.parameters(), lr=0.05, momentum=s.momentum)
            chunk = ClientChunk(method, fed.to(dtype=torch.float64), [j], t, seed, {}, {})
            for step in plan(chunk, 0, 4, 2).for_row(0):
                index = fed.train[j][step[step >= 0]]
                optimizer.zero_grad()
                (client.loss(fed.x[index].double(), fed.y[index], xi, mu, counts > 0) / len(index)).backward()
                optimizer.step()
            heads[j] = torch.cat([client.head.weight.flatten(), client.head.bias]).detach()
            if j not in reporting:
                continue
            for name, value in client.base.named_parameters():
                totals[name] = totals.get(name, 0) + n / n_all * value.detach()
            x, y = fed.x[fed.train[j]].double(), fed.y[fed.train[j]]
            with torch.no_grad():
                z = client.base(x)
            for k in set(y.tolist()):
                own = z[y == k]
                sigma = torch.cov(own.mT, correction=0) if len(own) > 1 else torch.zeros(d, d, dtype=torch.float64)
                precision_k = {
                    "full": torch.linalg.pinv(sigma, rtol=s.cutoff, hermitian=True) + s.alpha * torch.eye(d),
                    "diagonal": torch.linalg.pinv(sigma.diagonal().diag(), rtol=s.cutoff) + s.alpha * torch.eye(d),
                    "count": len(own) * torch.eye(d),
                    "equal": torch.eye(d),
                }[precision].double()
                top[k] += precision_k
                down[k] += precision_k @ own.mean(0)
                new_counts[k] += len(own)
        base = {f"base.{k}": v for k, v in totals.items()}
        kept += int(((new_counts == 0) & (counts > 0)).any())
        for k in new_counts.nonzero().flatten().tolist():
            mu[k], counts[k] = torch.linalg.solve(top[k], down[k]), new_counts[k]
    assert (kept > 0) == (participation < 1)  # some class was missing in a later round
    for name, value in base.items():
        assert torch.allclose(run.shared[name], value, atol=1e-8), name
    assert torch.allclose(run.shared["centroids"], mu, atol=1e-7)
    assert torch.equal(run.shared["counts"], counts)
    for j in range(3):
        assert torch.allclose(run.personal["w_j_point"][j], heads[j], atol=1e-8)


def test_the_first_round_knows_no_centroids() -> None:
    """It is FedPer's; without a centroid factor every round is."""
    fed = bumps()
    how = {"rounds": 1, "dtype": torch.float64, "progress": False}
    ours = fit(method_of(fed, xi=5.0), fed, **how)
    none = fit(method_of(fed, prior="flat"), fed, **how)
    fedper = FedPer(architecture("mlp:6", fed), epochs=1, lr=0.01, batch=10, momentum=0.0)
    theirs = fit(fedper, fed, **how)
    for name in ("base.1.weight", "base.1.bias"):
        assert torch.equal(ours.shared[name], none.shared[name])
        assert torch.equal(none.shared[name], theirs.shared[name])
    assert torch.equal(none.personal["w_j_point"], theirs.personal["mu"])
    assert none.shared.keys() == {"base.1.weight", "base.1.bias"}
    later = [fit(m, fed, **{**how, "rounds": 4}) for m in (method_of(fed, xi=5.0), method_of(fed, prior="flat"))]
    assert not torch.allclose(later[0].shared["base.1.weight"], later[1].shared["base.1.weight"], atol=1e-3)


def test_a_fixed_prior_never_moves() -> None:
    """Centroids at zero: a penalty on the features' size, for every class."""
    fed = bumps()
    fixed = fit(method_of(fed, prior="fixed", xi=20.0, lr=0.05), fed, rounds=20, progress=False)
    flat = fit(method_of(fed, prior="flat", lr=0.05), fed, rounds=20, progress=False)
    assert "centroids" not in fixed.shared
    sizes = []
    for run in (fixed, flat):
        base = run.fitted.method.network.base
        weights = {k: run.shared[f"base.{k}"] for k in ("1.weight", "1.bias")}
        sizes.append(float(base.apply(weights, fed.x[None]).square().mean()))
    assert sizes[0] < 0.2 * sizes[1]


def test_the_prior_of_the_centroids_is_in_the_model() -> None:
    fed = bumps().to(dtype=torch.float64)
    for weight in (0.0, 2.0):
        method = method_of(fed, prior_precision=weight)
        start = InitialWeights.for_network(method.network, 0)
        shared = {k: v.double() for k, v in method.shared(start).items()}
        mu = shared["centroids"] = torch.randn(CLASSES, 6, dtype=torch.float64, generator=torch.Generator())
        personal = {k: v.double()[None, None] for k, v in method.personal(start).items()}
        log_density = global_log_prob(method, fed.template(), shared, personal)
        normal = torch.distributions.Normal(0.0, 2.0**-0.5).log_prob(mu).sum() if weight else torch.zeros(())
        assert torch.isclose(log_density, normal.to(log_density), rtol=1e-6)


def test_methods_that_cannot_be() -> None:
    fed = bumps()
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    regression = Federation.from_arrays(x, x[:, 0].astype(np.float64), np.repeat(["a", "b"], 10))
    for make, words in (
        (lambda: PFedVMP(architecture("mlp:6", regression)), "a centroid for every class"),
        (lambda: method_of(fed, prior="fixed", precision="count"), "precision=count changes nothing with prior=fixed"),
        (
            lambda: method_of(fed, prior="flat", prior_precision=1),
            "prior_precision=1.0 changes nothing with prior=flat",
        ),
        (lambda: method_of(fed, precision="count", alpha=2), "alpha=2.0 changes nothing with precision=count"),
        (lambda: method_of(fed, prior="flat", xi=3), "xi=3.0 changes nothing with prior=flat"),
        (lambda: method_of(fed, cutoff=0), "cutoff must be above 0"),
        (lambda: method_of(fed, xi=0), "xi must be above 0"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    assert replace(method_of(fed).settings, xi=2.0).xi == 2.0
