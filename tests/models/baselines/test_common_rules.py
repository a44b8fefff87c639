"""What all baselines share, and the traps of public code that would change a result."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.baselines import fitted, rows_of

from hierfl import Federation
from hierfl.experiments.methods import load
from hierfl.inference import SVI, Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import UniformMean
from hierfl.models import (
    APFL,
    IFCA,
    METHODS,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProx,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedMe,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_a_plain_mean_counts_clients_not_examples(small: Federation, net: Architecture) -> None:
    chunk = rows_of(PFedMe(net), small)
    copies = torch.randn(7, 1, net.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = UniformMean(server_lr=0.75)
    total = {k: v.sum(0) for k, v in rule.message(["w"], chunk.put({"w": copies})).items()}
    new = rule.update({"w": chunk.shared["w"]}, total, AggregationContext(9, torch.tensor(7.0), 1, lambda names: {}))[
        "w"
    ]
    assert torch.allclose(new, 0.25 * chunk.shared["w"] + 0.75 * copies.mean((0, 1)), rtol=1e-12)


def test_who_is_smaller_than_a_batch_trains_all_the_same(small: Federation, net: Architecture) -> None:
    """Loaders that drop the last batch would leave a client of two examples as it was, with its full weight."""
    for method in (FedProx(net, batch=10), Ditto(net, batch=10), PFedMe(net, batch=10), Scaffold(net, batch=10)):
        chunk = rows_of(method, small)
        begun = chunk.shared["w"].clone()
        for number, step in enumerate(method.local()):
            chunk = step.run(chunk, number)
        assert len(small.train[chunk.clients[-1]]) == 2
        moved = (chunk.values["w"] - begun).abs().amax((1, 2))
        assert (moved > 1e-4).all(), type(method).__name__


def test_local_trains_everybody_whoever_reports(small: Federation, net: Architecture) -> None:
    run = fitted(Local(net), small, 1, participation=0.3)
    assert (
        (run.personal["mu"] - Local(net).personal(InitialWeights.for_network(net, 0))["mu"]).abs().amax(1) > 1e-4
    ).all()


@pytest.mark.parametrize("method", [PFedMe, Scaffold, IFCA, FedAvgFT, PerFedAvg, FedProx])
def test_whoever_cannot_change_anything_does_not_train(
    method: type[Method], small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who reports, and at an evaluation whoever's own model begins anew; the result is the same as if all did."""
    trained: list[int] = []
    run_step = SVI.run

    def seen(self: SVI, chunk: ClientChunk, phase: object) -> ClientChunk:
        if not isinstance(phase, tuple):
            trained.extend(chunk.clients)
        return run_step(self, chunk, phase)

    monkeypatch.setattr(SVI, "run", seen)
    made = method(net, **({"rounds": 2} if method is PFedMe else {}))
    ready = Fit(made, small, Options(rounds=4, participation=0.4, dtype=torch.float64, evaluate_every=3))
    for number in range(1, 5):
        trained.clear()
        ready.step()
        reported = set(ready.journal.status[-1].nonzero().flatten().tolist())
        everyone = method is PFedMe and number in (1, 4)
        assert set(trained) == (set(range(7)) if everyone else reported), number
    shared = ready.state.shared
    if method is PFedMe:
        always = dataclasses.replace(made.schedule(), absent="train")
        monkeypatch.setattr(made, "schedule", lambda: always)
    other = fitted(made, small, 4, participation=0.4)
    assert all(torch.allclose(shared[k], v, rtol=1e-10) for k, v in other.shared.items())


def test_defaults_do_not_switch_a_method_off(small: Federation, net: Architecture) -> None:
    """Public suites' defaults make FedProx and MOON FedAvg, Ditto local, and freeze pFedMe's global model."""
    avg, alone = fitted(FedAvg(net), small, 2), fitted(Local(net), small, 2)
    vector = net.vector(avg.shared, avg.shared["w"])
    locals_ = torch.stack(
        [net.vector({k: alone.personal[k][j] for k in net.base.names}, alone.personal["mu"][j]) for j in range(7)]
    )
    begin = FedProx(net).begin(InitialWeights.for_network(net, 0)).double()
    assert (fitted(FedProx(net), small, 2).shared["w"] - vector).abs().max() > 1e-3
    assert (fitted(Ditto(net), small, 2).personal["v"] - locals_).abs().max() > 1e-2
    assert (fitted(APFL(net), small, 2).personal["v"] - locals_).abs().max() > 1e-2
    assert (fitted(PFedMe(net), small, 2).shared["w"] - begin).abs().max() > 1e-3
    assert (
        fitted(PFedBayes(net), small, 2).shared["spread"] - PFedBayes(net).spread(InitialWeights.for_network(net, 0))
    ).abs().max() > 1e-6
    assert (fitted(FedPer(net), small, 2).shared["base.1.weight"] - avg.shared["base.1.weight"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.message_size is not None])
def test_what_the_list_of_methods_says_of_messages(name: str) -> None:
    """What is sent relative to FedAvg, for mlp:100 on 28x28 images of ten classes; and that something is, if so."""
    y = np.arange(20) % 10
    x = np.random.default_rng(0).normal(size=(20, 1, 28, 28))
    fed = Federation.from_arrays(x, y, np.arange(20) // 10, test=0.0, validation=0.0)
    sent = []
    for method in (name, "fedavg"):
        cls = load(method).cls
        ready = Fit(cls(architecture("mlp:100", fed, latent=cls.latent)), fed, Options(rounds=9))
        ready.step()
        sent.append(ready.state.bytes)
    entry = METHODS[name]
    assert round(sent[0] / sent[1], 2) == entry.message_size
    assert (entry.sent == "nothing") == (sent[0] == 0)
