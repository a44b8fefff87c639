"""FedRep and LG-FedAvg."""

from __future__ import annotations

import pytest
import torch
from support.baselines import fitted, rows_of
from support.federations import pictures

from hierfl import Federation, UserError
from hierfl.inference import SVI
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import (
    FedAvg,
    FedRep,
    LGFedAvg,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_fedrep_with_a_common_frozen_head_is_fedavg_on_the_base(small: Federation, net: Architecture) -> None:
    class FrozenHead(FedAvg):
        def local(self) -> list:
            return [SVI([], 0, sgd(0.1)), self.sgd("base")]  # the base comes second, as FedRep's does

        def exchange(self) -> dict:
            return {"base": super().exchange()["base"]}

    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    rep = fitted(FedRep(net, head_epochs=0, **common), small, 3)
    avg = fitted(FrozenHead(net, **common), small, 3)
    for name in net.base.names:
        assert torch.allclose(rep.shared[name], avg.shared[name], rtol=1e-10, atol=1e-12), name
    assert (rep.personal["mu"] == rep.personal["mu"][0]).all()


def test_lg_fedavg_shares_the_top_and_keeps_what_is_below(small: Federation) -> None:
    net = architecture("mlp:5,4", small)
    top_one, top_two = LGFedAvg(net), LGFedAvg(net, top=2)
    start = InitialWeights.for_network(net, 0)
    assert set(top_one.shared(start)) == {"w"}
    assert set(top_two.shared(start)) == {"w", "base.3.weight", "base.3.bias"}
    assert set(top_two.personal(start)) == {"base.1.weight", "base.1.bias"}
    with pytest.raises(UserError, match="top=3"):
        LGFedAvg(net, top=3)
    run = fitted(top_two, small, 2)
    assert run.personal["base.1.weight"].std(0).min() > 0
    assert not run.fitted.copies  # predictions are with the top as it was averaged
    first = top_two.local()[0].run(rows_of(top_two, small), 0)
    once = fitted(top_two, small, 1)
    for name in ("w", "base.3.weight"):
        mean = (first.n.view(-1, *[1] * (first.values[name].dim() - 2)) * first.values[name].squeeze(1)).sum(
            0
        ) / first.n.sum()
        assert torch.allclose(once.shared[name], mean, rtol=1e-9), name


def test_lg_fedavg_keeps_batch_norm_with_its_layer() -> None:
    net = architecture("bncnn:2:5", pictures())
    method = LGFedAvg(net, top=2)
    shared = set(method.shared(InitialWeights.for_network(net, 0)))
    norm = {k for k in net.base.norm_names if k in shared}
    assert norm
    assert {k.rpartition(".")[2] for k in norm} == {"weight", "bias", "running_mean", "running_var"}
    fitted(method, pictures(), 1)
