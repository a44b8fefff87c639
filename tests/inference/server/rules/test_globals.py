"""Several shared values, and factors on globals."""

from __future__ import annotations

import pyro
import torch
from pyro.distributions import Normal
from support.federations import slopes
from support.methods import states
from support.rounds import Rounds
from torch.nn.functional import softplus

from hierfl import Federation
from hierfl.inference import Gradient, Method, fit
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.models import FedAvg
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, param, sample


class Hyper(Method):
    """w ~ N(0, exp(log_s)^2): the scale of the globals is itself a parameter, and only log p(w) knows it."""

    order = ("w", "log_s")

    def shared(self, start: InitialWeights) -> dict:
        return {"w": torch.full_like(start.head, 1.0), "log_s": torch.zeros(1)}

    def personal(self, start: InitialWeights) -> dict:
        return {"mu": 0.1 * start.head, "pi": torch.zeros_like(start.head)}

    def model(self, batch: object) -> None:
        net = self.network
        scale = param("log_s").exp()
        w = sample("w", Normal(torch.zeros(net.head.d, dtype=batch.n.dtype), scale).to_event(1))
        pyro.deterministic("norm", w.norm(dim=-1))
        with clients(batch):
            w_j = sample("w_j", Normal(w, 1.0).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))

    def local(self) -> list:
        return []

    def exchange(self) -> dict:
        return {name: Gradient(sgd(0.1)) for name in self.order}


class Backwards(Hyper):
    order = ("log_s", "w")


def test_rules_see_the_same_old_values_whatever_their_order() -> None:
    fed = slopes([6, 4])
    net = architecture("linear", fed)
    runs = [fit(cls(net), fed, rounds=3, dtype=torch.float64, progress=False) for cls in (Hyper, Backwards)]
    for name in ("w", "log_s"):
        assert torch.allclose(runs[0].shared[name], runs[1].shared[name], rtol=1e-12)
    first_round = fit(Hyper(net), fed, rounds=1, dtype=torch.float64, progress=False)
    # d/dlog_s of sum log N(w_i | 0, s^2) at w = 1, s = 1 is sum (w_i^2 - 1) = 0 in the first round, not after
    assert first_round.shared["log_s"].abs().max() < 1e-12
    assert runs[0].shared["log_s"].abs().max() > 1e-3


def test_factors_and_anchors_on_globals_count(small: Federation, net: Architecture) -> None:
    class Anchored(FedAvg):
        def model(self, batch: object) -> None:
            super().model(batch)
            w = param("w")
            pyro.factor("ridge", -5.0 * w.square().sum(-1))
            sample("anchor", Normal(w.sum(-1), 0.5), obs=torch.tensor(10.0, dtype=torch.float64))

        def local(self) -> list:
            return []

        def exchange(self) -> dict:
            return {"w": Gradient(sgd(0.001))}

    method = Anchored(net)
    shared, _ = states(method, small)
    w = shared["w"]
    expected = -5 * w.square().sum() + Normal(w.sum(), 0.5).log_prob(torch.tensor(10.0, dtype=torch.float64))
    assert torch.allclose(global_log_prob(method, small.template(), shared, {}), expected)
    gradient = Rounds(method, small, shared, {}).server._prior_gradient(shared, ["w"])["w"]
    assert torch.allclose(gradient, -10 * w + (10 - w.sum()) / 0.25)
    run = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    assert run.last()["pm_accuracy"] is not None  # y is the response, not the anchor
