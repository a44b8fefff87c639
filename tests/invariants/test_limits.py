"""Invariant 5, limits: where one method becomes another."""

from __future__ import annotations

import torch
from support.federations import blobs
from support.methods import largest_first, states
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.inference import PrecisionWeightedMean, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import (
    FedAvg,
    FedPop,
    FedRep,
    PFedVEM,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_equal_confidence_gives_the_plain_mean(small: Federation, net: Architecture) -> None:
    method, rule = PFedVEM(net), PrecisionWeightedMean("mu", "rho")
    shared, rows = states(method, small)
    rows["rho"] = torch.full_like(rows["rho"], 0.3)
    sums = {
        k: v.sum(0)
        for k, v in rule.message(["w"], ClientChunk(method, small, list(range(7)), 1, 0, shared, rows)).items()
    }
    w = rule.update({"w": shared["w"]}, sums, AggregationContext(7, torch.tensor(7.0), 1, lambda n: {}))["w"]
    assert torch.allclose(w, rows["mu"].mean((0, 1)), rtol=1e-12)


def test_a_fixed_prior_is_never_moved(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net, prior="fixed", sigma_0=0.7)
    run = fit(method, small, rounds=3, dtype=torch.float64, progress=False)
    assert (run.personal["rho"] == 0.7).all()
    assert (run.shared["w"] == 0).all()
    assert not torch.equal(
        run.shared["base.1.weight"], InitialWeights.for_network(net, 0).base["base.1.weight"].double()
    )


def test_one_full_batch_epoch_of_fedavg_is_gradient_descent_on_the_pooled_mean_loss(
    small: Federation, net: Architecture
) -> None:
    lr = 0.1
    method = FedAvg(net, epochs=1, batch=1000, lr=lr, momentum=0.0)
    start = {k: v.double().requires_grad_() for k, v in method.shared(InitialWeights.for_network(net, 0)).items()}
    index = torch.cat(list(small.train))
    x, y = small.examples(index)
    features = net.base.apply(net.base.parameters_from(start), x[None])
    loss = cross_entropy(net.head(start["w"], features)[0], y)
    gradients = dict(zip(start, torch.autograd.grad(loss, list(start.values())), strict=True))
    run = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    for name, value in start.items():
        assert torch.allclose(run.shared[name], value - lr * gradients[name], rtol=1e-10, atol=1e-12), name


def test_fedpop_without_a_spread_has_the_pooled_objective(small: Federation, net: Architecture) -> None:
    """sigma -> 0: every z_j is mu, and the summed messages are the gradient of the pooled log likelihood at mu."""
    method = FedPop(net, sigma_0=1e-7, start="stateless", steps=3, burn=1, step_size=1e-16)
    shared = {k: v.double() for k, v in method.shared(InitialWeights.for_network(net, 0)).items()}
    rows = {
        k: v.double().expand(7, 1, *v.shape) for k, v in method.personal(InitialWeights.for_network(net, 0)).items()
    }
    order = largest_first(small)
    chunk = method.local()[0].run(ClientChunk(method, small, order, 1, 0, shared, rows), 0)
    names = [k for k in shared if k.startswith("base")]
    messages = method.exchange()["base"].message(names, chunk)
    x, y = small.examples(torch.cat(list(small.train)))
    leaves = {k: shared[k].clone().requires_grad_() for k in names}
    features = net.base.apply(net.base.parameters_from(leaves), x[None])
    pooled = -cross_entropy(net.head(shared["mu"], features)[0], y, reduction="sum")
    for name, gradient in zip(names, torch.autograd.grad(pooled, list(leaves.values())), strict=True):
        assert torch.allclose(messages[name].sum(0), gradient, rtol=1e-4, atol=1e-4), name


def test_fedpop_without_a_prior_takes_fedreps_step() -> None:
    """sigma -> inf, point heads, one full-batch step of the base, everyone there: base and heads are FedRep's."""
    n, lr, fed = 9, 0.1, blobs([9] * 5)
    net = architecture("mlp:5", fed)
    pop = FedPop(net, prior="flat", steps=20, step_size=lr / n, inner_phi_steps=1, inner_lr=lr)
    rep = FedRep(net, head_epochs=20, epochs=1, lr=lr, batch=n, momentum=0.0)
    pop_run, rep_run = (fit(method, fed, rounds=3, dtype=torch.float64, progress=False) for method in (pop, rep))
    for name, value in rep_run.shared.items():
        assert torch.allclose(pop_run.shared[name], value, rtol=1e-9, atol=1e-12), name
    assert torch.allclose(pop_run.personal["z_point"], rep_run.personal["mu"], rtol=1e-9, atol=1e-12)


def test_flat_prior_with_a_point_guide_is_fedreps_alternation(small: Federation, net: Architecture) -> None:
    """Full-batch head steps on the mean loss, then the base: pFedVEM at prior=flat and FedRep take the same steps."""
    n = 9
    fed = blobs([n] * 5)  # equal sizes: the summed head objective is n times the mean one
    net = architecture("mlp:5", fed)
    flat = PFedVEM(
        net,
        prior="flat",
        head_epochs=3,
        head_lr=0.1 / n,
        base_epochs=2,
        base_lr=0.1,
        base_batch=n,
        momentum=0.5,
    )
    rep = FedRep(net, head_epochs=3, epochs=2, lr=0.1, batch=n, momentum=0.5)
    a = fit(flat, fed, rounds=2, dtype=torch.float64, progress=False)
    b = fit(rep, fed, rounds=2, dtype=torch.float64, progress=False)
    assert torch.allclose(a.personal["mu"], b.personal["mu"], rtol=1e-9, atol=1e-12)
    assert torch.allclose(a.shared["base.1.weight"], b.shared["base.1.weight"], rtol=1e-9, atol=1e-12)
