"""MOON: features that look like the broadcast network's rather than the client's last one's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.baselines import assert_resumed_is_the_same, fitted, linear, rows_of
from support.federations import blobs, pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import MOON, FedAvg
from hierfl.models.baselines.moon import cosines, projected
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}
#: mlp:5 and its projection head
LAYERS = ("1", "3", "5")


@pytest.fixture
def fed() -> Federation:
    """Clients of very different sizes."""
    return blobs([23, 12, 9, 14, 2])


@pytest.fixture
def net(fed: Federation) -> Architecture:
    return architecture("mlp:5", fed)


def features(base: dict[str, Tensor], x: Tensor) -> Tensor:
    """mlp:5 and a projection head by hand."""
    for layer in LAYERS:
        x = x @ base[f"{layer}.weight"].T + base[f"{layer}.bias"]
        x = x if layer == "5" else x.relu()
    return x


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosines, by hand."""
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def loss_of(
    base: dict[str, Tensor], w: Tensor, sent: dict[str, Tensor], last: dict[str, Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """The paper's, mu 3 and tau 0.7: cross entropy, and mu times that of z being like the broadcast network's."""
    z = features(base, x)
    logits = z @ w[:18].view(3, 6).T + w[18:]
    near = (similarity(z, features(sent, x).detach()) / 0.7).exp()
    far = (similarity(z, features(last, x).detach()) / 0.7).exp()
    own = logits.softmax(-1)[torch.arange(len(y)), y]
    return (-own.log() - 3.0 * (near / (near + far)).log()).mean()


@pytest.mark.parametrize("projection", [0, 6])
def test_without_the_factor_it_is_fedavg(projection: int, fed: Federation, net: Architecture) -> None:
    """With the same network, bit for bit, whoever reports."""
    moon = MOON(net, mu=0.0, projection=projection, **COMMON)
    same = projected(net, projection) if projection else net
    run, other = (fitted(m, fed, 4, participation=0.6) for m in (moon, FedAvg(same, **COMMON)))
    assert run.shared.keys() == other.shared.keys()
    assert all(torch.equal(v, run.shared[k]) for k, v in other.shared.items())
    for name in ("gm_nll", "pm_nll"):
        assert run.evaluations[-1][name] == pytest.approx(other.evaluations[-1][name], rel=1e-12)


def test_the_factor_acts_from_the_second_round_on(fed: Federation, net: Architecture) -> None:
    """In the first round the last network is the broadcast one, and nothing is pushed anywhere; defaults do act."""
    gaps = []
    for rounds in (1, 2):
        runs = [fitted(MOON(net, projection=6, **mu, **COMMON), fed, rounds) for mu in ({}, {"mu": 0.0})]
        gaps.append(max(float((runs[0].shared[k] - v).abs().max()) for k, v in runs[1].shared.items()))
    assert gaps[0] < 1e-14
    assert gaps[1] > 1e-3


def test_rounds_are_a_plain_loop_of_the_papers_formula(fed: Federation, net: Architecture) -> None:
    """Some report; who does not keeps the network of the last round in which it took part."""
    method = MOON(net, mu=3.0, tau=0.7, projection=6, momentum=0.0, **COMMON)
    ready = Fit(method, fed, Options(rounds=5, participation=0.5, dtype=torch.float64, evaluate_every=10))
    start = {k: v.double() for k, v in InitialWeights.for_network(method.network, 0).base.items()}
    last = [{k.removeprefix("base."): v for k, v in start.items()} for _ in range(5)]
    old = 0
    for number in range(1, 6):
        w = ready.state.shared["w"].clone()
        sent = {k: ready.state.shared[f"base.{k}"].clone() for k in last[0]}
        old += sum(any(not torch.equal(v, sent[k]) for k, v in own.items()) for own in last)
        ready.step()
        total: dict[str, Tensor] = {}
        reported = [j for j in range(5) if ready.journal.status[-1][j]]
        for j in reported:
            chunk = ClientChunk(method, fed, [j], number, 0, {}, {})
            x, y = fed.examples(fed.train[j])
            own = {"w": w, **sent}
            for epoch in range(2):
                for batch in order_of(chunk, 0, 0, epoch).split(4):
                    own = {k: v.detach().requires_grad_() for k, v in own.items()}
                    base = {k: v for k, v in own.items() if k != "w"}
                    loss = loss_of(base, own["w"], sent, last[j], x[batch], y[batch])
                    slopes = torch.autograd.grad(loss, list(own.values()))
                    own = {k: v - 0.05 * g for (k, v), g in zip(own.items(), slopes, strict=True)}
            own = {k: v.detach() for k, v in own.items()}
            total = {k: total.get(k, 0) + len(x) * v for k, v in own.items()}
            last[j] = {k: v for k, v in own.items() if k != "w"}
        examples = sum(len(fed.train[j]) for j in reported)
        for name, value in total.items():
            actual = ready.state.shared["w" if name == "w" else f"base.{name}"]
            torch.testing.assert_close(actual, value / examples, rtol=1e-9, atol=1e-12)
        for j in range(5):
            for name, value in last[j].items():
                actual = ready.fitted().personal[f"last.{name}"][j]
                torch.testing.assert_close(actual, value, rtol=1e-9, atol=1e-12)
    assert old > 10


def test_the_elbo_is_the_objective(fed: Federation, net: Architecture) -> None:
    """Summed over each client's own examples: padded ones do not count."""
    method = MOON(net, mu=3.0, tau=0.7, projection=6)
    chunk = rows_of(method, fed)
    rng = torch.Generator().manual_seed(0)
    elsewhere = {k: v + 0.3 * torch.randn(v.shape, generator=rng).double() for k, v in chunk.values.items()}
    moved = {
        k: v + 0.3 * torch.randn(v.shape, generator=rng).double()
        for k, v in chunk.own(["base.1.weight"]).values.items()
    }
    chunk = chunk.put({**moved, **elsewhere})
    bounds = elbo(method, chunk.batch(), chunk.view, None)
    sent = {k.removeprefix("base."): v for k, v in chunk.shared.items() if k != "w"}
    for row, j in enumerate(chunk.clients):
        x, y = fed.examples(fed.train[j])
        last = {k.removeprefix("last."): v[row, 0] for k, v in chunk.values.items() if k.startswith("last.")}
        base = {**sent, "1.weight": chunk.values["base.1.weight"][row, 0]}
        expected = -len(x) * loss_of(base, chunk.shared["w"], sent, last, x, y)
        assert float(bounds[row]) == pytest.approx(float(expected), rel=1e-9)


def test_what_is_sent(fed: Federation, net: Architecture) -> None:
    """FedAvg's message: the last network stays."""
    method = MOON(net, projection=6, **COMMON)
    chunk = rows_of(method, fed)
    server = Rounds(method, fed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    sent = {key for message in server.messages(chunk).values() for key in message}
    assert sent == {"w", "weight", *method.network.base.names}
    assert method.new_client_terms({k: v.squeeze(1) for k, v in chunk.values.items()}) == {}
    for name in method.network.base.names:
        trained, kept = chunk.values[name], chunk.values[name.replace("base.", "last.")]
        assert torch.equal(trained, kept)
        assert trained.data_ptr() != kept.data_ptr()


def test_predictions_are_the_shared_networks(fed: Federation, net: Architecture) -> None:
    """Whatever a client's last network is; there is no part of it in the probabilities."""
    run = fitted(MOON(net, projection=6, **COMMON), fed, 3)
    base = {k: run.shared[f"base.{k}"] for k in (f"{n}.{p}" for n in LAYERS for p in ("weight", "bias"))}
    w = run.shared["w"]
    for j in range(5):
        x = fed.examples(fed.test[j])[0]
        expected = (features(base, x) @ w[:18].view(3, 6).T + w[18:]).softmax(-1)
        for predictions in (run.predict(x, client=fed.ids[j]), run.predict_new_client(x)):
            torch.testing.assert_close(predictions.double(), expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(UserError, match="nothing that a new client could learn"):
        run.predict_new_client(x.numpy(), given=(x.numpy(), fed.examples(fed.test[4])[1].numpy()))


def test_the_projection_head(fed: Federation, net: Architecture) -> None:
    """Two layers with a ReLU between them, behind a base network that begins as it would without them."""
    made, plain = MOON(net).network, InitialWeights.for_network(net, 3)
    assert made.head.features == 256
    assert {k: tuple(s) for k, s in made.base.shapes.items()} == {
        "1.weight": (5, 4), "1.bias": (5,), "3.weight": (5, 5), "3.bias": (5,), "5.weight": (256, 5), "5.bias": (256,)
    }  # fmt: skip
    start = InitialWeights.for_network(made, 3)
    assert all(torch.equal(v, start.base[k]) for k, v in plain.base.items())
    small = projected(net, 6)
    x = fed.examples(fed.test[0])[0]
    values = {k.removeprefix("base."): v.double() for k, v in InitialWeights.for_network(small, 0).base.items()}
    output = small.base.apply(values, x[None])[0]
    torch.testing.assert_close(output, features(values, x), rtol=1e-12, atol=1e-14)
    assert (output < 0).any()


def test_features_of_zero_have_a_finite_gradient() -> None:
    z = torch.zeros(1, 2, 3, requires_grad=True)
    cosines(z, torch.ones(1, 2, 3), torch.zeros(1, 2, 3)).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_a_resumed_run_is_the_same(fed: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(MOON(net, projection=6, **COMMON), fed, tmp_path, 0.6)


def test_networks_and_data_that_fit(lines: Federation, fed: Federation) -> None:
    """Held networks drop nothing and go by their running statistics; regressions have features, too."""
    run = fitted(MOON(linear(lines), epochs=1), lines, 2)
    assert all(v.isfinite().all() for v in run.shared.values())
    with pytest.raises(UserError, match="moon compares features that it learns, and network linear has none"):
        MOON(architecture("linear", fed), projection=0)
    # Without steps that lead anywhere, z is what the broadcast network makes of x, but for what is dropped.
    for spec, like in (("mlp:5,dropout=0.5", False), ("mlp:5", True)):
        method = MOON(architecture(spec, fed), projection=0)
        chunk = rows_of(method, fed)
        seen: list[float] = []

        def looked(z: Tensor, sent: Tensor, last: Tensor, seen: list[float] = seen) -> Tensor:
            seen.append(float((z - sent).detach().abs().max()))
            assert torch.equal(sent, last)
            return cosines(z, sent, last)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hierfl.models.baselines.moon.cosines", looked)
            method.local()[0].run(chunk, 0)
        assert (seen[0] < 1e-12) == like
    norms = pictures()
    net = architecture("bncnn:2:5", norms)
    run, start = fitted(MOON(net, epochs=1, projection=0), norms, 2), InitialWeights.for_network(net, 0).base
    for name in (k for k in net.base.names if k.endswith("running_mean")):
        last = run.personal[name.replace("base.", "last.")]
        assert (run.shared[name] - start[name]).abs().max() > 1e-6
        assert (last[0] - last[1]).abs().max() > 1e-6
