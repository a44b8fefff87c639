"""Batch norm of a client's own."""

from __future__ import annotations

import copy

import pytest
import torch
from support.pfedv import SPEC, pictures
from support.representatives import of_all

from hierfl import UserError
from hierfl.inference import fit
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.inference.method.base import Method
from hierfl.models import FOLA, FedAvg, FedBN, FedV, PFedHB, PFedV
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.nn.networks.build import architecture

#: latent features, of clients and of all, and none
CASES = [(cls, local_norm) for cls in (PFedV, FedV, FedBN) for local_norm in ("statistics", "all")]
QUICK = [(PFedV, "statistics"), (FedBN, "all")]
NORMS = pytest.mark.parametrize("case", of_all(CASES, QUICK, lambda case: f"{case[0].__name__}-{case[1]}"))


def test_own_batch_norm_stays_with_the_client() -> None:
    fed = pictures((20, 20, 20), contrast=True)
    network = architecture("bncnn:3,4:8", fed)
    run = fit(FedBN(network, lr=0.05), fed, rounds=2, progress=False)
    assert run.personal.keys() == {*network.base.norm_names}
    assert not run.shared.keys() & run.personal.keys()
    statistics = fit(FedBN(network, local_norm="statistics", lr=0.05), fed, rounds=2, progress=False)
    assert all(map(is_statistic, statistics.personal))
    for name, value in run.personal.items():
        assert not torch.allclose(value[0], value[1]), name
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    with pytest.raises(UserError, match="no global model"):
        run.predict_new_client(x)
    before, after = (run.predict_new_client(x, given=(x, y), draws=0, rounds=r) for r in (0, 30))
    nll = [-predictions.gather(1, y[:, None].long()).log().mean() for predictions in (before, after)]
    assert nll[1] < nll[0]  # its own batch norm, from the mean of the others'
    everyone = fit(FedAvg(network, lr=0.05), fed, rounds=2, progress=False)
    assert everyone.shared.keys() == {"w", *network.base.names}


@pytest.mark.cpu(4, "five fits with batch norm, and steps of a new client")
def test_pfedhb_without_parts_is_fedbn() -> None:
    """And with them the network is the same; its own batch norm is that of the averaged weights where it is asked."""
    fed = pictures((20, 30), contrast=True)
    network = architecture("bncnn:3,4:8", fed)
    common = {"local_norm": "all", "lr": 0.05, "batch": 16, "epochs": 1}
    plain = fit(FedBN(network, **common), fed, rounds=2, progress=False)
    for parts in ({"shares": "off", "heads": "off"}, {"features": "on"}):
        run = fit(PFedHB(network, **common, **parts), fed, rounds=2, progress=False)
        assert all(torch.equal(value, run.shared[name]) for name, value in plain.shared.items())
        assert all(torch.equal(value, run.personal[name]) for name, value in plain.personal.items())
    assert not run.shared.keys() & plain.personal.keys()
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    with pytest.raises(UserError, match="no global model"):
        run.predict_new_client(x)
    with pytest.raises(UserError, match="bn_refresh_epochs=1 changes nothing with local_norm=nothing"):
        PFedHB(network, bn_refresh_epochs=1)
    stale, own = (
        fit(PFedHB(network, **common, heads="off", average=3, bn_refresh_epochs=epochs), fed, rounds=2, progress=False)
        for epochs in (0, 20)
    )
    assert not any(name.removeprefix("averaged.") in plain.personal for name in own.shared)
    weight, bias = (own.shared[f"averaged.base.0.{what}"] for what in ("weight", "bias"))
    seen = torch.conv2d(x, weight, bias, padding=network.base.module[0].padding).mean((0, 2, 3))
    errors = [(run.personal["base.1.running_mean"][0] - seen).abs().max() for run in (stale, own)]
    assert errors[1] < 0.2 * errors[0]
    after = own.predict_new_client(x, given=(x, y), draws=0, rounds=10).gather(1, y[:, None].long()).log().mean()
    assert after > own.predict_new_client(x, given=(x, y), draws=0, rounds=1).gather(1, y[:, None].long()).log().mean()


@pytest.mark.cpu(3, "a running mean takes 200 steps to six digits")
@pytest.mark.parametrize("case", of_all(CASES, [(PFedV, "statistics")], lambda case: f"{case[0].__name__}-{case[1]}"))
def test_a_newcomers_own_batch_norm(case: tuple[type[Method], str]) -> None:
    """Its running statistics become those of its own data: as when torch's own layers are shown it again and again."""
    cls, local_norm = case
    fed = pictures((40, 40, 40), contrast=True)
    network = architecture("bncnn:3,4:8", fed, latent=cls.latent)
    run = fit(
        cls(network, local_norm=local_norm, lr=0.05, batch=64), fed, rounds=2, dtype=torch.float64, progress=False
    )
    assert not run.fitted.method.has_global_model
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    served = fit_new_client(run.fitted, x, y, 200)
    first = "encoder.1" if cls.latent else "base.1"
    assert {f"{first}.running_mean", f"{first}.running_var"} <= served.personal.keys()
    assert (f"{first}.weight" in served.personal) == (local_norm == "all")
    weight, bias = (run.shared[f"{first[:-1]}0.{what}"] for what in ("weight", "bias"))
    seen = torch.conv2d(x.double(), weight, bias, padding=network.networks[0].module[0].padding)
    mean, variance = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    assert torch.allclose(served.personal[f"{first}.running_mean"][0], mean, rtol=1e-6)
    assert torch.allclose(served.personal[f"{first}.running_var"][0], variance, rtol=1e-6)
    others = run.personal[f"{first}.running_mean"].mean(0)
    assert not torch.allclose(others, mean, rtol=1e-2)


@pytest.mark.slow
@NORMS
def test_statistics_taken_anew(case: tuple[type[Method], str]) -> None:
    """After the last round they become those of the averaged weights, in torch's own layers; nothing else moves."""
    cls, local_norm = case
    fed = pictures((40, 30, 20), contrast=True)
    network = architecture("bncnn:3,4:8,z-norm" if cls.latent else "bncnn:3,4:8", fed, latent=cls.latent)
    settings = {"local_norm": local_norm, "lr": 0.05, "batch": 64}
    plain, refreshed = (
        fit(cls(network, **settings, bn_refresh_epochs=epochs), fed, rounds=2, dtype=torch.float64, progress=False)
        for epochs in (0, 200)
    )
    assert all(torch.equal(value, refreshed.shared[name]) for name, value in plain.shared.items())
    for j in range(3):
        module, before = copy.deepcopy(network.networks[0].module).double(), network.networks[0].name
        own = {k: v[j] for k, v in refreshed.personal.items()}
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not name.endswith("num_batches_tracked"):
                with torch.no_grad():
                    value.copy_(
                        {**refreshed.shared, **{k: v[j] for k, v in plain.personal.items()}}[f"{before}.{name}"]
                    )
        for _ in range(200):
            module.train()(fed.x[fed.train[j]].double())
        for name, value in own.items():
            if not is_statistic(name):
                assert torch.equal(value, plain.personal[name][j])
            elif name.startswith(f"{before}."):
                assert torch.allclose(value, dict(module.named_buffers())[name.removeprefix(f"{before}.")], rtol=1e-9)
                assert not torch.allclose(value, plain.personal[name][j], rtol=1e-2)
    with pytest.raises(UserError, match="bn_refresh_epochs=1 changes nothing with local_norm=nothing"):
        PFedV(architecture(SPEC, fed, latent=True), bn_refresh_epochs=1)


def test_folas_statistics_are_those_of_the_servers_weights() -> None:
    """Each client's own after the last round; a client that comes later has those of its data."""
    fed = pictures((40, 30, 20), contrast=True)
    network = architecture("bncnn:3,4:8", fed)
    run = fit(
        FOLA(network, lr=0.05, batch=64, epochs=1, bn_refresh_epochs=60), fed, rounds=2, dtype=torch.float64,
        progress=False,
    )  # fmt: skip
    assert all(map(is_statistic, run.personal))
    assert not run.shared.keys() & run.personal.keys()
    assert not run.fitted.method.has_global_model
    weights, _ = network.parts(run.shared["w.mean"])
    for j in range(3):
        x = fed.x[fed.train[j]].double()
        seen = torch.conv2d(x, weights["0.weight"], weights["0.bias"], padding=network.networks[0].module[0].padding)
        assert torch.allclose(run.personal["base.1.running_mean"][j], seen.mean((0, 2, 3)), atol=5e-3)
    served = fit_new_client(run.fitted, fed.x[fed.train[0]], fed.y[fed.train[0]], 2)
    assert torch.allclose(served.personal["base.1.running_mean"][0], run.personal["base.1.running_mean"][0], atol=1e-2)
    with pytest.raises(UserError, match="has no batch norm"):
        FOLA(architecture("mlp:4", fed), bn_refresh_epochs=1)
