"""pFedV's networks and settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import Call
from support.pfedv import SPEC, method_of, pictures, states

from hierfl import UserError
from hierfl.inference import fit
from hierfl.inference.state import client_view
from hierfl.models import FedAvg, FedBN, PFedV
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict
from hierfl.rng import generator


def test_methods_that_cannot_be() -> None:
    fed = pictures()
    for make, words in (
        (lambda: PFedV(architecture(SPEC.removesuffix(",z-norm"), fed)), "latent=True"),
        (lambda: architecture("mlp:5,z-norm", fed), "latent features"),
        (lambda: fit(FedAvg(architecture(SPEC, fed, latent=True)), fed, rounds=1), "fedavg has no latent features"),
        (lambda: architecture("linear", fed, latent=True), "no layer"),
        (lambda: architecture("mlp:5,dropout=0.5", fed, latent=True), "no dropout"),
        (lambda: method_of(PFedV, fed, alpha=0), "alpha must be above 0"),
        (lambda: FedBN(architecture("mlp:5", fed)), "network mlp:5 has no batch norm"),
        (lambda: architecture("bncnn:3", fed), "is written bncnn:C,C"),
    ):
        with pytest.raises(UserError, match=words):
            make()


def test_networks_with_latent_features() -> None:
    fed = pictures()
    plain, latent = architecture("bncnn:3,4:8", fed), architecture("bncnn:3,4:8", fed, latent=True)
    assert latent.latents == 4 * 3 * 3
    assert (
        latent.encoder.apply({k[8:]: v for k, v in latent.encoder.init(generator(0)).items()}, fed.batch([0]).x).shape[
            -1
        ]
        == 72
    )
    assert len(plain.base.norm_names) == 12
    assert len(latent.encoder.norm_names) == 4
    assert len(architecture(SPEC, fed, latent=True).encoder.norm_names) == 8
    assert plain.head == latent.head
    assert not any(map(is_statistic, architecture("mlp:4", fed).base.names))


def test_a_least_standard_deviation() -> None:
    """Of guide and prior alike; without one the hierarchical prior's goes to zero, and with it everything."""
    fed = pictures((8, 8)).to(dtype=torch.float64)
    means, sds = [], []
    for least in (0.0, 0.25):
        method = method_of(PFedV, fed, sd_min=least)
        shared, rows = states(method, fed)
        with Restrict(client_view(shared, rows)):
            x = fed.batch([0, 1]).x
            p, q = method.prior(x).base_dist, method.posterior_of(x).base_dist
        means.append(torch.stack([p.loc.expand_as(q.loc), q.loc]))
        sds.append(torch.stack([p.scale.expand_as(q.scale), q.scale]))
    assert torch.equal(*means)
    assert torch.allclose(sds[0] + 0.25, sds[1])
    with pytest.raises(UserError, match="sd_min=0.1 changes nothing with prior=flat"):
        method_of(PFedV, fed, prior="flat", sd_min=0.1)


def test_from_the_command_line(hierfl: Call, tmp_path: Path) -> None:
    code, _, err = hierfl(
        "run", "pfedv", "--rounds", 2, "--network", "mlp:16,8", "--out", "o", "--quiet", "--set", "lr=0.1"
    )
    assert code == 0, err
    assert (tmp_path / "o" / "posterior.nc").is_file()
