"""GPFL: class embeddings for all, a conditional valve, a head of one's own."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from support.baselines import assert_resumed_is_the_same, features, fitted, linear, rows_of
from support.federations import blobs, pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import SVI
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import GPFL, FedPer
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}
Values = dict[str, Tensor]


@pytest.fixture
def skewed() -> Federation:
    """Classes are unequal, the second client has one alone, the third lacks one; the last has two examples."""
    fed, train = blobs([23, 12, 9, 14, 2]), []
    for j, classes in enumerate([(0, 1, 2), (2,), (0, 2), (2, 1, 0), (0, 1)]):
        first, *others = ([i for i in fed.train[j].tolist() if fed.y[i] == k][: 5 + 3 * j] for k in classes)
        train.append(torch.tensor([*(first[:2] if others else first), *(i for of in others for i in of)]))
    return dataclasses.replace(fed, train=train)


@pytest.fixture
def net(skewed: Federation) -> Architecture:
    return architecture("mlp:5", skewed)


def counts_of(fed: Federation, j: int) -> list[int]:
    return torch.bincount(fed.y[fed.train[j]], minlength=fed.classes).tolist()


class HeldValve(GPFL):
    """Nothing of the valve is trained, and it lets features through as they are."""

    trained: tuple[str, ...] = ("E", "base", "mu")

    def shared(self, start: InitialWeights) -> dict:
        initial = super().shared(start)
        return {k: 0 * v if k.startswith("valve.") and ".2." in k else v for k, v in initial.items()}

    def local(self) -> list:
        return [ClassCounts("class_counts"), self.sgd(*self.trained)]

    def exchange(self) -> dict:
        return {name: rule for name, rule in super().exchange().items() if name in self.trained}


class SecondFedPer(FedPer):
    """FedPer whose steps come second, as GPFL's do: the same minibatches."""

    local_copies = ()

    def local(self) -> list:
        return [SVI([], 0, sgd(0.1)), *super().local()]


# -- by hand ----------------------------------------------------------------------------------------------------------


def conditional(values: Values, name: str, c: Tensor) -> Tensor:
    """A linear layer, ReLU, layer norm."""
    h = (values[f"valve.{name}.0.weight"] @ c + values[f"valve.{name}.0.bias"]).relu()
    h = (h - h.mean()) / (h.var(unbiased=False) + 1e-5).sqrt()
    return h * values[f"valve.{name}.2.weight"] + values[f"valve.{name}.2.bias"]


def valve(values: Values, z: Tensor, c: Tensor) -> Tensor:
    return ((1 + conditional(values, "gamma", c)) * z + conditional(values, "beta", c)).relu()


def own_logits(values: Values, z: Tensor) -> Tensor:
    return z @ values["mu"][:15].view(3, 5).T + values["mu"][15:]


def minus_log_p(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    return -torch.stack([row[k].log() for row, k in zip(p, y.tolist(), strict=True)])


def condition(sent: Tensor, counts: list[int]) -> Tensor:
    return sum(n / sum(counts) * sent[k] for k, n in enumerate(counts))  # type: ignore[return-value]


def losses(values: Values, sent: Tensor, counts: list[int], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the own head, of the angles, and the distances, example by example; ``sent`` is E as broadcast."""
    z = features(values, x)
    z_own = valve(values, z, condition(sent, counts))
    z_global = valve(values, z, (sent[0] + sent[1] + sent[2]) / 3)
    e = values["E"]
    cosines = torch.stack([torch.nn.functional.cosine_similarity(z_global, e[k][None]) for k in range(3)], 1)
    distances = torch.stack([(row - sent[k]).pow(2).sum().sqrt() for row, k in zip(z_global, y.tolist(), strict=True)])
    return minus_log_p(own_logits(values, z_own), y), minus_log_p(cosines, y), distances


def trained(
    fed: Federation, chunk: ClientChunk, values: Values, *, lam: float, mu: float, fixed: tuple[str, ...] = ()
) -> Values:
    """What a client makes of a round: all values go down the gradient of one loss, at once."""
    (j,) = chunk.clients
    x, y = fed.examples(fed.train[j])
    sent, counts = values["E"].clone(), counts_of(fed, j)
    for epoch in range(2):
        for batch in order_of(chunk, 0, 1, epoch).split(4):
            values = {k: v.detach().requires_grad_() for k, v in values.items()}
            own, angles, distances = losses(values, sent, counts, x[batch], y[batch])
            loss = (own + angles + lam * distances).mean()
            decayed = [v for k, v in values.items() if k == "E" or k.startswith("valve.")]
            loss = loss + mu / 2 * sum(v.square().sum() for v in decayed)
            slopes = torch.autograd.grad(loss, list(values.values()))
            pairs = zip(values.items(), slopes, strict=True)
            values = {k: v if fixed and k.startswith(fixed) else v - 0.05 * g for (k, v), g in pairs}
    return {k: v.detach() for k, v in values.items()}


def assert_rounds_are_the_loops(
    method: GPFL, fed: Federation, lam: float, mu: float, fixed: tuple[str, ...] = ()
) -> None:
    ready = Fit(method, fed, Options(rounds=3, participation=0.5, dtype=torch.float64, evaluate_every=10))
    for _ in range(3):
        shared = {k: v.clone() for k, v in ready.state.shared.items()}
        heads = ready.fitted().personal["mu"].clone()
        ready.step()
        reported = ready.journal.status[-1].bool()
        assert 0 < reported.sum() < fed.clients
        sums: Values = {}
        for j in range(fed.clients):
            chunk = ClientChunk(method, fed, [j], ready.journal.round, 0, {}, {})
            local = trained(fed, chunk, {**shared, "mu": heads[j]}, lam=lam, mu=mu, fixed=fixed)
            torch.testing.assert_close(ready.fitted().personal["mu"][j], local.pop("mu"), rtol=1e-9, atol=1e-12)
            if reported[j]:
                sums = {k: sums.get(k, 0) + len(fed.train[j]) * v for k, v in local.items()}
        total = sum(len(fed.train[j]) for j in reported.nonzero().flatten().tolist())
        assert sums.keys() == shared.keys()
        for name, value in sums.items():
            torch.testing.assert_close(ready.state.shared[name], value / total, rtol=1e-9, atol=1e-12)


# -- what it is -------------------------------------------------------------------------------------------------------


def test_rounds_are_a_plain_loop_of_the_papers_formulas(skewed: Federation, net: Architecture) -> None:
    """Clients of unequal sizes, some of which report; everybody's head trains."""
    assert_rounds_are_the_loops(GPFL(net, lam=0.3, mu=0.2, momentum=0.0, **COMMON), skewed, 0.3, 0.2)


def test_with_the_valve_held_open_it_is_two_heads_on_one_base(skewed: Federation, net: Architecture) -> None:
    """Features are what they are: the valve's last layer is zero, so that both conditions do nothing."""
    method = HeldValve(net, lam=0.0, mu=0.0, momentum=0.0, **COMMON)
    assert_rounds_are_the_loops(method, skewed, 0.0, 0.0, fixed=("valve.",))
    start = {k: v.double() for k, v in method.shared(InitialWeights.for_network(net, 0)).items()}
    z = features(start, skewed.x)
    assert torch.equal(valve(start, z, start["E"][1]), z)


def test_without_embeddings_and_valve_it_is_fedper(skewed: Federation, net: Architecture) -> None:
    """Embeddings that are zero and stay have no angles: heads and base are trained by the own likelihood alone."""

    class Nothing(HeldValve):
        trained = ("base", "mu")

        def shared(self, start: InitialWeights) -> dict:
            initial = super().shared(start)
            return {**initial, "E": 0 * initial["E"]}

    reduced = fitted(Nothing(net, lam=0.0, **COMMON), skewed, 3, participation=0.6)
    other = fitted(SecondFedPer(net, **COMMON), skewed, 3, participation=0.6)
    for name, value in other.shared.items():
        torch.testing.assert_close(reduced.shared[name], value, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(reduced.personal["mu"], other.personal["mu"], rtol=1e-12, atol=1e-14)
    assert reduced.evaluations[-1]["pm_nll"] == pytest.approx(other.evaluations[-1]["pm_nll"], rel=1e-12)


def test_of_a_client_with_equal_classes_both_conditions_are_one(net: Architecture) -> None:
    """p_j is g where all classes are as frequent; where they are not, it is the mean of E by the client's labels."""
    fed = blobs([24, 6, 7])
    method = GPFL(net, **COMMON)
    chunk = method.local()[0].run(rows_of(method, fed), 0)
    z = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(2)).double()
    for row, j in enumerate(chunk.clients):
        shared = chunk.shared
        g = shared["E"].mean(0)
        p = condition(shared["E"], counts_of(fed, j))
        assert torch.allclose(p, g, rtol=1e-12) == (j != 2)
        assert torch.allclose(valve(shared, z[row], p), valve(shared, z[row], g), rtol=1e-9) == (j != 2)


def test_the_conditions_go_by_the_embeddings_of_now(skewed: Federation, net: Architecture) -> None:
    """Those of this broadcast, not of the one before, in training and where a client predicts."""
    run = fitted(GPFL(net, **COMMON), skewed, 3)
    for j in range(skewed.clients):
        x = skewed.examples(skewed.test[j])[0]
        values = {**run.shared, "mu": run.personal["mu"][j]}
        z = valve(values, features(values, x), condition(run.shared["E"], counts_of(skewed, j)))
        expected = own_logits(values, z).softmax(-1)
        torch.testing.assert_close(run.predict(x, client=skewed.ids[j]).double(), expected, rtol=1e-9, atol=1e-12)
    assert run.evaluations[-1]["gm_accuracy"] is None


def test_the_elbo_is_the_objective(skewed: Federation, net: Architecture) -> None:
    """Distances are of each example and not squared; what is constant depends on n_j alone."""
    method = GPFL(net, lam=0.7, mu=0.3)
    chunk = method.local()[0].run(rows_of(method, skewed), 0)
    bounds = elbo(method, chunk.batch(), chunk.view, None)
    numbers = sum(v.numel() for k, v in chunk.shared.items() if k == "E" or k.startswith("valve."))
    squares = sum(v.square().sum() for k, v in chunk.shared.items() if k == "E" or k.startswith("valve."))
    log_z = math.log(2 * math.pi**2.5 * math.gamma(5) / math.gamma(2.5)) - 5 * math.log(0.7)
    for row, j in enumerate(chunk.clients):
        x, y = skewed.examples(skewed.train[j])
        n, values = len(y), {**chunk.shared, "mu": chunk.values["mu"][row, 0]}
        own, angles, distances = losses(values, chunk.shared["E"], counts_of(skewed, j), x, y)
        loss = (own + angles + 0.7 * distances).sum() + n * log_z
        loss = loss + n * 0.15 * squares + numbers / 2 * math.log(2 * math.pi / (0.3 * n))
        assert float(bounds[row]) == pytest.approx(-float(loss), rel=1e-9)


def test_what_is_sent(skewed: Federation, net: Architecture) -> None:
    """Neither heads nor counts of labels."""
    method = GPFL(net)
    chunk = rows_of(method, skewed)
    server = Rounds(method, skewed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    messages = server.messages(chunk)
    assert set(messages) == {"E", "valve", "base"}
    sent = {key for message in messages.values() for key in message}
    assert sent == {"E", "weight", *method.gamma.names, *method.beta.names, *net.base.names}
    numbers = sum(v[0].numel() for m in messages.values() for k, v in m.items() if k != "weight")
    d = net.head.features
    assert numbers == sum(chunk.shared[k].numel() for k in net.base.names) + 3 * d + 2 * d**2 + 6 * d


@pytest.mark.parametrize("chunk", [1, 2])
def test_whoever_is_beside_a_client(chunk: int, skewed: Federation, net: Architecture) -> None:
    """Masks of padded examples, and minibatches of different clients, are nobody else's."""
    runs = [fitted(GPFL(net, **COMMON), skewed, 2, chunk=size) for size in (chunk, 5)]
    for name, value in runs[1].shared.items():
        torch.testing.assert_close(runs[0].shared[name], value, rtol=1e-11, atol=1e-13)
    for j, counts in enumerate(runs[0].personal["class_counts"]):
        assert counts.tolist() == counts_of(skewed, j)


def test_a_new_client_fits_a_head_alone(skewed: Federation, net: Architecture) -> None:
    run = fitted(GPFL(net, **COMMON), skewed, 2)
    before = {k: v.clone() for k, v in run.shared.items()}
    x, y = (part.numpy() for part in skewed.examples(skewed.train[1]))
    first, last = (run.predict_new_client(x, given=(x, y), rounds=rounds) for rounds in (1, 5))
    assert (last[:, 2] > first[:, 2]).all()  # its only class
    assert all(torch.equal(v, before[k]) for k, v in run.shared.items())
    with pytest.raises(UserError, match="no global model"):
        run.predict_new_client(x)


def test_a_resumed_run_is_the_same(skewed: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(GPFL(net, **COMMON), skewed, tmp_path, 0.6)


def test_networks_and_data_that_fit(lines: Federation, skewed: Federation) -> None:
    with pytest.raises(UserError, match="gpfl has an embedding for every class: data with labels"):
        GPFL(linear(lines))
    for spec in ("mlp:6,dropout=0.5", "linear"):
        run = fitted(GPFL(architecture(spec, skewed), **COMMON), skewed, 2)
        assert all(v.isfinite().all() for v in run.shared.values())
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(GPFL(norm, epochs=1), fed, 1), InitialWeights.for_network(norm, 0).base
    assert all((run.shared[k] - start[k]).abs().max() > 1e-6 for k in norm.base.names if k.endswith("running_mean"))
