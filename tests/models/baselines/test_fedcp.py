"""FedCP: a gate that splits features between the head of all and one's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.baselines import assert_resumed_is_the_same, features, fitted, linear, logits, rows_of
from support.federations import blobs, pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedCP, FedPer
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}
Values = dict[str, Tensor]


@pytest.fixture
def uneven() -> Federation:
    """The second client has one class alone, the last minibatch of the last client a single example."""
    fed = blobs([23, 12, 9, 14, 5])
    train = [index if j != 1 else index[fed.y[index] == 2] for j, index in enumerate(fed.train)]
    return dataclasses.replace(fed, train=train)


@pytest.fixture
def net(uneven: Federation) -> Architecture:
    return architecture("mlp:5", uneven)


class Gated(FedCP):
    """The gate is held where all features are the own head's (1), all the other's (0), or half of each (0.5)."""

    share = 0.5

    def shared(self, start: InitialWeights) -> dict:
        initial = super().shared(start)
        shift = torch.zeros(2 * self.features)  # of the layer norm, whose scale is 0
        if self.share != 0.5:
            half = slice(0, self.features) if self.share else slice(self.features, None)
            shift[half] = 1e4
        return {**initial, "gate.1.weight": 0 * initial["gate.1.weight"], "gate.1.bias": shift}

    def local(self) -> list:
        return [self.sgd("base", "mu")]

    def exchange(self) -> dict:
        return {name: rule for name, rule in super().exchange().items() if name != "gate"}


# -- by hand ----------------------------------------------------------------------------------------------------------


def context(head: Tensor) -> Tensor:
    rows = head[:15].view(3, 5)
    v = rows[0] + rows[1] + rows[2]
    return v / v.square().sum().sqrt()


def policy(values: Values, c: Tensor, z: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Softmax over the two numbers of each feature, the first with a difference of Gumbel numbers more."""
    h = (c * z) @ values["gate.0.weight"].T + values["gate.0.bias"]
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    h = (h * values["gate.1.weight"] + values["gate.1.bias"]).relu()
    return torch.stack([h[:, :5] + noise, h[:, 5:]]).softmax(0)[0]


def discrepancy(z: Tensor, sent: Tensor) -> Tensor:
    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum((-squares / 2 / s).exp() for s in (10, 15, 20, 50)).mean()  # type: ignore[union-attr]

    return mean_kernel(z, z) + mean_kernel(sent, sent) - 2 * mean_kernel(z, sent)


def trained(fed: Federation, chunk: ClientChunk, values: Values, c: Tensor, lam: float, noisy: bool) -> Values:
    """What a client makes of a round; w and the context are as they were when it began."""
    (j,) = chunk.clients
    x, y = fed.examples(fed.train[j])
    w, sent, step = values["w"], {k: v.clone() for k, v in values.items()}, 0
    values = {k: v for k, v in values.items() if k != "w"}
    for epoch in range(2):
        for batch in order_of(chunk, 0, 0, epoch).split(4):
            values = {k: v.detach().requires_grad_() for k, v in values.items()}
            z, s = features(values, x[batch]), torch.zeros(())
            if noisy:
                r = chunk.noise(0, 1).at(step).normal("noise", len(batch), torch.Size([5]))[0, 0]
                s = torch.logit(torch.special.ndtr(r))
            a = policy(values, c, z, s)
            p = (logits(values["mu"], a * z) + logits(w, (1 - a) * z)).softmax(1)
            loss = -torch.stack([row[k].log() for row, k in zip(p, y[batch].tolist(), strict=True)]).mean()
            loss = loss + lam * discrepancy(z, features(sent, x[batch]))
            slopes = torch.autograd.grad(loss, list(values.values()))
            values = {k: v - 0.05 * g for (k, v), g in zip(values.items(), slopes, strict=True)}
            step += 1
    return {k: v.detach() for k, v in values.items()}


def mixed(values: Values, w: Tensor, x: Tensor, half: bool) -> Tensor:
    """What is sent in place of the head, class by class."""
    own = values["mu"]
    if half:
        return 0.5 * own + 0.5 * w
    z = features(values, x)
    a = policy(values, context(own), z).mean(0)
    rows = [a * own[5 * k : 5 * k + 5] + (1 - a) * w[5 * k : 5 * k + 5] for k in range(3)]
    return torch.cat([*rows, a.mean() * own[15:] + (1 - a.mean()) * w[15:]])


@pytest.mark.parametrize(
    ("lam", "gumbel", "sent_head"),
    [(0.0, "never", "policy"), (0.0, "never", "half"), (2.0, "never", "policy"), (2.0, "training", "policy")],
)
def test_rounds_are_a_plain_loop_of_the_papers_formulas(
    lam: float, gumbel: str, sent_head: str, uneven: Federation, net: Architecture
) -> None:
    """Clients of unequal sizes, some of which report; everybody's head trains."""
    method = FedCP(net, lam=lam, gumbel=gumbel, sent_head=sent_head, momentum=0.0, **COMMON)
    options = Options(rounds=3, participation=0.5, dtype=torch.float64, evaluate_every=10)
    ready = Fit(method, uneven, options)
    for _ in range(3):
        shared = {k: v.clone() for k, v in ready.state.shared.items()}
        heads = ready.fitted().personal["mu"].clone()
        ready.step()
        reported, sums = ready.journal.status[-1].bool(), {}
        assert 0 < reported.sum() < uneven.clients
        for j in range(uneven.clients):
            chunk = ClientChunk(method, uneven, [j], ready.journal.round, 0, {}, {})
            local = trained(uneven, chunk, {**shared, "mu": heads[j]}, context(heads[j]), lam, gumbel == "training")
            torch.testing.assert_close(ready.fitted().personal["mu"][j], local["mu"], rtol=1e-8, atol=1e-11)
            if reported[j]:
                x = uneven.examples(uneven.train[j])[0]
                sent = {**local, "w": mixed(local, shared["w"], x, sent_head == "half")}
                sums = {k: sums.get(k, 0) + len(x) * v for k, v in sent.items() if k != "mu"}
        total = sum(len(uneven.train[j]) for j in reported.nonzero().flatten().tolist())
        assert sums.keys() == shared.keys()
        for name, value in sums.items():
            torch.testing.assert_close(ready.state.shared[name], value / total, rtol=1e-8, atol=1e-11)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_where_all_is_the_own_heads_it_is_fedper(uneven: Federation, net: Architecture) -> None:
    """The head of all, held at zero, gets nothing of the features; no term holds the base."""

    class OwnHead(Gated):
        share = 1.0

        def shared(self, start: InitialWeights) -> dict:
            initial = super().shared(start)
            return {**initial, "w": 0 * initial["w"]}

        def exchange(self) -> dict:
            return {"base": super().exchange()["base"]}

    run = fitted(OwnHead(net, lam=0.0, **COMMON), uneven, 3, participation=0.6)
    other = fitted(FedPer(net, **COMMON), uneven, 3, participation=0.6)
    for name, value in other.shared.items():
        torch.testing.assert_close(run.shared[name], value, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(run.personal["mu"], other.personal["mu"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_head_that_is_sent_goes_by_the_policy(share: float, uneven: Federation, net: Architecture) -> None:
    """That of all where features went there, one's own where they went there, half of both at half and half."""

    class At(Gated):
        pass

    At.share = share
    for j in (0, 3):
        method = At(net, **COMMON)
        chunk = rows_of(method, uneven).take([j])
        for number, step in enumerate(method.local()):
            chunk = step.run(chunk, number)
        own, common = chunk.values["mu"][0, 0], chunk.shared["w"]
        assert share == 0 or (own - common).abs().max() > 1e-3
        expected = share * own + (1 - share) * common
        torch.testing.assert_close(method.mixed_head(chunk)[0], expected, rtol=1e-12, atol=1e-14)
    runs = [fitted(At(net, sent_head=how, **COMMON), uneven, 2) for how in ("policy", "half")]
    gap = (runs[0].shared["w"] - runs[1].shared["w"]).abs().max()
    assert gap < 1e-12 if share == 0.5 else gap > 1e-4


def test_all_contexts_are_that_of_the_common_start(uneven: Federation, net: Architecture) -> None:
    """Whatever clients have learned: a softmax's slopes sum to zero over classes. Heads themselves differ."""
    run = fitted(FedCP(net, **COMMON), uneven, 3)
    start = FedCP(net).personal(InitialWeights.for_network(net, 0))["mu"]
    for mu in run.personal["mu"]:
        torch.testing.assert_close(context(mu), context(start), rtol=1e-10, atol=1e-12)
    assert (run.personal["mu"][0] - run.personal["mu"][1]).abs().max() > 1e-2


def test_heads_that_agree_are_sent_as_they_are(uneven: Federation, net: Architecture) -> None:
    """Whatever the policy, what is sent lies between the two heads."""
    run = fitted(FedCP(net, epochs=0), uneven, 2)
    start = FedCP(net).shared(InitialWeights.for_network(net, 0))["w"]
    torch.testing.assert_close(run.shared["w"], start.double(), rtol=1e-12, atol=1e-14)


def test_there_is_no_noise_where_a_client_predicts(uneven: Federation, net: Architecture) -> None:
    """With the base, gate and head of all as the server last made them."""
    run = fitted(FedCP(net, **COMMON), uneven, 3)
    for j in range(uneven.clients):
        x = uneven.examples(uneven.test[j])[0]
        mu = run.personal["mu"][j]
        z = features(run.shared, x)
        a = policy(run.shared, context(mu), z)
        expected = (logits(mu, a * z) + logits(run.shared["w"], (1 - a) * z)).softmax(-1)
        for _ in range(2):
            predictions = run.predict(x, client=uneven.ids[j]).double()
            torch.testing.assert_close(predictions, expected, rtol=1e-9, atol=1e-12)
    assert run.evaluations[-1]["gm_accuracy"] is None


def test_what_is_sent(uneven: Federation, net: Architecture) -> None:
    """A mixed head, not one's own."""
    method = FedCP(net, **COMMON)
    chunk = rows_of(method, uneven)
    server = Rounds(method, uneven, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    messages = server.messages(chunk)
    sent = {key for message in messages.values() for key in message}
    assert sent == {"w", "weight", *method.gate.names, *net.base.names}
    head = messages["w"]["w"] / messages["w"]["weight"][:, None]
    own, common = chunk.values["mu"][:, 0], chunk.shared["w"]
    share = ((head - common) / (own - common))[:, :15]  # what moved, feature by feature
    moved = (own - common)[:, :15].abs() > 1e-4
    assert ((share[moved] > 0) & (share[moved] < 1)).all()
    for row in range(len(chunk.clients)):  # whoever is beside it
        alone = server.messages(chunk.take([row]))["w"]["w"][0]
        torch.testing.assert_close(alone, messages["w"]["w"][row], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk", [1, 2])
def test_whoever_is_beside_a_client(chunk: int, uneven: Federation, net: Architecture) -> None:
    """Noise, minibatches' features and masks of padded examples are nobody else's."""
    runs = [fitted(FedCP(net, **COMMON), uneven, 2, chunk=size) for size in (chunk, 5)]
    for name, value in runs[1].shared.items():
        torch.testing.assert_close(runs[0].shared[name], value, rtol=1e-10, atol=1e-12)


def test_a_new_client_fits_a_head_alone(uneven: Federation, net: Architecture) -> None:
    run = fitted(FedCP(net, **COMMON), uneven, 2)
    before = {k: v.clone() for k, v in run.shared.items()}
    x, y = (part.numpy() for part in uneven.examples(uneven.train[1]))
    first, last = (run.predict_new_client(x, given=(x, y), rounds=rounds) for rounds in (1, 5))
    assert (last[:, 2] > first[:, 2]).all()  # its only class
    assert all(torch.equal(v, before[k]) for k, v in run.shared.items())


def test_a_resumed_run_is_the_same(uneven: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedCP(net, **COMMON), uneven, tmp_path, 0.6)


def test_networks_and_data_that_fit(lines: Federation, uneven: Federation) -> None:
    with pytest.raises(UserError, match="fedcp has a context of class weights: data with labels"):
        FedCP(linear(lines))
    for spec in ("mlp:6,dropout=0.5", "linear"):
        run = fitted(FedCP(architecture(spec, uneven), **COMMON), uneven, 2)
        assert all(v.isfinite().all() for v in run.shared.values())
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(FedCP(norm, epochs=1), fed, 1), InitialWeights.for_network(norm, 0).base
    assert all((run.shared[k] - start[k]).abs().max() > 1e-6 for k in norm.base.names if k.endswith("running_mean"))
