"""FedProto: networks of one's own around centroids that all agree on."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from support.baselines import assert_resumed_is_the_same, features, fitted, lacking_classes, linear, logits, rows_of
from support.federations import pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import FedProto, Local
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}


@pytest.fixture
def skewed() -> Federation:
    return lacking_classes()


@pytest.fixture
def net(skewed: Federation) -> Architecture:
    return architecture("mlp:5", skewed)


def network_of(run: Run, j: int) -> dict[str, Tensor]:
    return {k: v[j] for k, v in run.personal.items()}


def class_means(fed: Federation, run: Run, clients: list[int]) -> dict[int, Tensor]:
    """Of the features of all examples of each class that these clients have, one by one."""
    by_class: dict[int, list[Tensor]] = {}
    for j in clients:
        x, y = fed.examples(fed.train[j])
        for z, k in zip(features(network_of(run, j), x), y.tolist(), strict=True):
            by_class.setdefault(k, []).append(z)
    return {k: torch.stack(z).mean(0) for k, z in by_class.items()}


def test_without_the_term_the_networks_are_locals(skewed: Federation, net: Architecture) -> None:
    methods = FedProto(net, lam=0.0, **COMMON), Local(net, **COMMON)
    proto, alone = (fitted(method, skewed, 3, participation=0.6) for method in methods)
    assert proto.personal.keys() == alone.personal.keys()
    assert all(torch.equal(v, proto.personal[k]) for k, v in alone.personal.items())


def test_there_is_no_term_before_there_are_centroids(skewed: Federation, net: Architecture) -> None:
    """In the first round features are not pulled anywhere, not to zero either; from the second on they are."""
    runs = [[fitted(m, skewed, r) for m in (FedProto(net, lam=50.0, **COMMON), Local(net, **COMMON))] for r in (1, 2)]
    name = "base.1.weight"
    assert torch.equal(runs[0][0].personal[name], runs[0][1].personal[name])
    assert (runs[1][0].personal[name] - runs[1][1].personal[name]).abs().max() > 1e-2


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_centroids_are_the_class_means_of_all_examples(chunk: int, skewed: Federation, net: Architecture) -> None:
    """Every example counts the same, whoever has it, under the network as its client has trained it."""
    run = fitted(FedProto(net, **COMMON), skewed, 3, chunk=chunk)
    expected = class_means(skewed, run, list(range(5)))
    torch.testing.assert_close(
        run.shared["centroids"], torch.stack([expected[k] for k in range(3)]), rtol=1e-10, atol=1e-12
    )
    everything = torch.cat([skewed.y[t] for t in skewed.train])
    assert torch.equal(run.shared["centroids.counts"], torch.bincount(everything).double())


def trained(
    fed: Federation, chunk: ClientChunk, own: dict[str, Tensor], c: Tensor, known: list[bool]
) -> dict[str, Tensor]:
    """What a client makes of a round, by the formula of its loss."""
    (j,) = chunk.clients
    x, y = fed.examples(fed.train[j])
    for epoch in range(2):
        for batch in order_of(chunk, 0, 0, epoch).split(4):
            own = {k: v.detach().requires_grad_() for k, v in own.items()}
            z, labels = features(own, x[batch]), y[batch].tolist()
            p = logits(own["mu"], z).softmax(-1)
            loss = sum(-p[i, k].log() for i, k in enumerate(labels))
            loss = loss + 0.7 * sum(((z[i] - c[k]) ** 2).mean() for i, k in enumerate(labels) if known[k])
            slopes = torch.autograd.grad(loss / len(labels), list(own.values()))
            own = {k: v - 0.05 * g for (k, v), g in zip(own.items(), slopes, strict=True)}
    return {k: v.detach() for k, v in own.items()}


def test_rounds_are_a_plain_loop_of_the_papers_formulas(skewed: Federation, net: Architecture) -> None:
    """Some report, everybody trains; a class that none of them has keeps its centroid, or has none yet."""
    method = FedProto(net, lam=0.7, momentum=0.0, **COMMON)
    options = Options(rounds=6, participation=0.4, dtype=torch.float64, evaluate_every=10, seed=1)
    ready, c, known, kept, never = Fit(method, skewed, options), torch.zeros(3, 5).double(), [False] * 3, 0, 0
    for number in range(1, 7):
        before = {k: v.clone() for k, v in ready.fitted().personal.items()}
        ready.step()
        sums, counts = torch.zeros(3, 5).double(), [0, 0, 0]
        for j in range(5):
            chunk = ClientChunk(method, skewed, [j], number, 1, {}, {})
            own = trained(skewed, chunk, {k: v[j] for k, v in before.items()}, c, known)
            for name, value in own.items():
                torch.testing.assert_close(ready.fitted().personal[name][j], value, rtol=1e-8, atol=1e-11)
            if ready.journal.status[-1][j]:
                x, y = skewed.examples(skewed.train[j])
                for z, k in zip(features(own, x), y.tolist(), strict=True):
                    sums[k] += z
                    counts[k] += 1
        new = torch.stack([sums[k] / counts[k] if counts[k] else c[k] for k in range(3)])
        kept += sum(known[k] and not counts[k] for k in range(3))
        never += sum(not known[k] and not counts[k] for k in range(3))
        c, known = new, [known[k] or counts[k] > 0 for k in range(3)]
        torch.testing.assert_close(ready.state.shared["centroids"], c, rtol=1e-8, atol=1e-11)
        assert (ready.state.shared["centroids.counts"] > 0).tolist() == known
    assert kept
    assert never


def test_the_elbo_is_the_objective_alone(skewed: Federation, net: Architecture) -> None:
    """The site that predicts is no term of it, nor is a class without a centroid."""
    method = FedProto(net, lam=0.7)
    c = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = rows_of(method, skewed, centroids=c, **{"centroids.counts": torch.tensor([3.0, 0, 2]).double()})
    bounds = elbo(method, chunk.batch(), chunk.view, None)
    for row, j in enumerate(chunk.clients):
        x, y = skewed.examples(skewed.train[j])
        own = {k: v[row, 0] for k, v in chunk.values.items()}
        z = features(own, x)
        loss = torch.nn.functional.cross_entropy(logits(own["mu"], z), y, reduction="sum")
        pulled = y != 1
        distance = ((z - c[y]) ** 2).mean(1)[pulled].sum()
        constant = 2.5 * math.log(2 * math.pi * 5 / 1.4) * int(pulled.sum())
        assert float(bounds[row]) == pytest.approx(float(-loss - 0.7 * distance - constant), rel=1e-9)


def test_what_is_sent(skewed: Federation, net: Architecture) -> None:
    """Sums and counts alone, of each client by itself, whoever is beside it; nothing of classes that it lacks."""
    method = FedProto(net, **COMMON)
    chunk = method.local()[0].run(rows_of(method, skewed), 0)
    server = Rounds(method, skewed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    messages = server.messages(chunk)
    assert {group: set(m) for group, m in messages.items()} == {"centroids": {"centroids", "centroids.counts"}}
    for row, j in enumerate(chunk.clients):
        alone = server.messages(chunk.take([row]))["centroids"]
        counts = torch.bincount(skewed.y[skewed.train[j]], minlength=3)
        for key, value in messages["centroids"].items():
            torch.testing.assert_close(alone[key][0], value[row], rtol=1e-12, atol=1e-13)
        assert torch.equal(messages["centroids"]["centroids.counts"][row], counts.double())
        assert (messages["centroids"]["centroids"][row][counts == 0] == 0).all()
    assert server.receive(messages, chunk.clients).all()


@pytest.mark.parametrize("spoil", [lambda n: -n, torch.zeros_like])
def test_counts_that_are_none_are_rejected(spoil: object, skewed: Federation, net: Architecture) -> None:
    method = FedProto(net, **COMMON)
    chunk = rows_of(method, skewed)
    server = Rounds(method, skewed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    sent = server.messages(chunk)["centroids"]
    bad = {"centroids": 0 * sent["centroids"], "centroids.counts": spoil(sent["centroids.counts"])}  # type: ignore[operator]
    assert not server.receive({"centroids": bad}, chunk.clients).any()


def test_a_class_that_no_message_has_keeps_its_centroid(net: Architecture) -> None:
    rule = FedProto(net).exchange()["centroids"]
    before = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    old = {"centroids": before, "centroids.counts": torch.tensor([4.0, 0, 2])}
    sums = torch.tensor([0.0, 6, 0])[:, None].expand(3, 5)
    total = {"centroids": sums, "centroids.counts": torch.tensor([0.0, 3, 0])}
    new = rule.update(old, total, AggregationContext(3, torch.tensor(1.0), 1, dict))
    assert torch.equal(new["centroids"][[0, 2]], old["centroids"][[0, 2]])
    assert (new["centroids"][1] == 2).all()
    assert new["centroids.counts"].tolist() == [4, 3, 2]


def test_the_nearest_centroid_predicts(skewed: Federation, net: Architecture) -> None:
    """With its own network, and the centroids as the server last made them; T changes no accuracy and no training."""
    runs = {t: fitted(FedProto(net, temperature=t, **COMMON), skewed, 3) for t in (1.0, 2.5)}
    assert all(torch.equal(v, runs[2.5].personal[k]) for k, v in runs[1.0].personal.items())
    for t, run in runs.items():
        right = []
        for j in range(5):
            x, y = skewed.examples(skewed.test[j])
            z, c = features(network_of(run, j), x), run.shared["centroids"]
            distances = torch.stack([((z - c[k]) ** 2).sum(1) for k in range(3)], 1)
            right.append((distances.argmin(1) == y).double().mean())
            predictions = run.predict(x, client=skewed.ids[j]).double()
            torch.testing.assert_close(predictions, (-distances / t).softmax(-1), rtol=1e-8, atol=1e-11)
        assert run.evaluations[-1]["pm_accuracy"] == pytest.approx(float(torch.stack(right).mean()))
        assert run.evaluations[-1]["gm_accuracy"] is None


def test_a_class_without_a_centroid_is_never_predicted(net: Architecture) -> None:
    """And costs a finite loss; where no class has one, all are alike."""
    method, c = FedProto(net, temperature=0.5), torch.tensor([[0.0] * 5, [9.0] * 5, [1.0] * 5])
    z = torch.tensor([[[0.0] * 5, [4.0] * 5]])
    single = method.nearest(z, c, torch.tensor([False, True, False]))
    assert (single.log_probs.argmax(-1) == 1).all()
    assert single.probs[0, 0].tolist() == pytest.approx([1 / (2 + math.e), math.e / (2 + math.e), 1 / (2 + math.e)])
    pair = method.nearest(z, c, torch.tensor([False, True, True]))
    assert (pair.log_probs.argmax(-1) == 2).all()
    assert (pair.log_probs[..., 0] < pair.log_probs[..., 1:].amin(-1)).all()
    assert pair.log_probs.isfinite().all()
    torch.testing.assert_close(method.nearest(z, c, torch.tensor([False] * 3)).probs, torch.full((1, 2, 3), 1 / 3))


def test_a_run_in_which_a_class_is_still_unknown_has_numbers(skewed: Federation, net: Architecture) -> None:
    fed = dataclasses.replace(skewed, train=[t[skewed.y[t] != 2] for t in skewed.train])
    run = fitted(FedProto(net, **COMMON), fed, 2)
    assert run.shared["centroids.counts"][2] == 0
    assert math.isfinite(run.evaluations[-1]["pm_nll"])


def test_a_new_client_is_pulled_to_the_centroids(skewed: Federation, net: Architecture) -> None:
    run = fitted(FedProto(net, momentum=0.0, **COMMON), skewed, 6)
    x, y = skewed.examples(skewed.train[0])
    near = []
    for rounds in (1, 20):
        p = run.predict_new_client(x.numpy(), given=(x.numpy(), y.numpy()), rounds=rounds)
        near.append(float(p[torch.arange(len(y)), y].log().mean()))
    assert near[1] > near[0] + 0.02
    with pytest.raises(UserError, match="no global model"):  # a client without examples has no features
        run.predict_new_client(x.numpy())


def test_a_resumed_run_is_the_same(skewed: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedProto(net, **COMMON), skewed, tmp_path, 0.4)


def test_networks_and_data_that_fit(lines: Federation, skewed: Federation) -> None:
    with pytest.raises(UserError, match="fedproto has a centroid for every class: data with labels"):
        FedProto(linear(lines))
    drop = architecture("mlp:5,dropout=0.5", skewed)
    run = fitted(FedProto(drop, **COMMON), skewed, 2)
    expected = class_means(skewed, run, list(range(5)))  # of the features that predict: nothing is dropped
    torch.testing.assert_close(run.shared["centroids"][1], expected[1], rtol=1e-10, atol=1e-12)
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(FedProto(norm, epochs=1), fed, 2), InitialWeights.for_network(norm, 0).base
    own = {k: v for k, v in run.personal.items() if k.endswith("running_mean")}
    assert own
    assert all((v - start[k]).abs().max() > 1e-6 for k, v in own.items())
    own_z, labels = [], []
    for j in range(fed.clients):
        x, y = fed.examples(fed.train[j])
        values = {k: v[j] for k, v in run.personal.items()}
        own_z.append(norm.base.apply(norm.base.parameters_from(values), x[None])[0])
        labels.append(y)
    z, y = torch.cat(own_z), torch.cat(labels)
    means = torch.stack([z[y == k].mean(0) for k in range(3)])
    torch.testing.assert_close(run.shared["centroids"], means, rtol=1e-9, atol=1e-11)
