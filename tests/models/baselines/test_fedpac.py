"""FedPAC: heads on shared features around centroids, combined by the server for each client."""

from __future__ import annotations

import dataclasses
from itertools import combinations as subsets
from pathlib import Path

import pytest
import torch
from support.baselines import (
    assert_resumed_is_the_same,
    begin_on_a_rank,
    features,
    fitted,
    lacking_classes,
    linear,
    logits,
    rows_of,
)
from support.commands import Call
from support.federations import blobs, pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.codec import Quantise
from hierfl.inference.messages.pipeline import Codec
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.rules import own_combination
from hierfl.models import FedPAC, FedRep
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "head_epochs": 3, "lr": 0.05, "batch": 4}
#: as FedRep, whose head has the base's steps
PLAIN = {**COMMON, "head_lr": 0.05, "lam": 0.0, "momentum": 0.9}
REP = {k: v for k, v in PLAIN.items() if k not in ("head_lr", "lam")}


@pytest.fixture
def skewed() -> Federation:
    return lacking_classes()


@pytest.fixture
def net(skewed: Federation) -> Architecture:
    return architecture("mlp:5", skewed)


def base_of(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in values.items() if k.startswith("base")}


def test_with_own_weights_and_no_term_it_is_fedrep(
    skewed: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whoever reports."""
    rep = fitted(FedRep(net, **REP), skewed, 3, participation=0.6)
    other = fitted(FedPAC(net, **PLAIN), skewed, 3, participation=0.6)
    assert (other.personal["mu"] - rep.personal["mu"]).abs().max() > 1e-2
    monkeypatch.setattr(own_combination, "combinations", lambda v, h: torch.eye(len(v), dtype=torch.float64))
    pac = fitted(FedPAC(net, **PLAIN), skewed, 3, participation=0.6)
    assert torch.equal(pac.personal["mu"], rep.personal["mu"])
    assert all(torch.equal(v, pac.shared[k]) for k, v in rep.shared.items())


def test_equal_statistics_give_everybody_the_plain_mean(skewed: Federation, net: Architecture) -> None:
    class Alike(FedPAC):
        def statistics(self, chunk: ClientChunk) -> tuple[Tensor, Tensor]:
            v, h = super().statistics(chunk)
            return torch.full_like(v, 0.3), torch.ones_like(h)

    rep = fitted(FedRep(net, **REP), skewed, 1)
    run = fitted(Alike(net, **PLAIN), skewed, 1)
    mean = rep.personal["mu"].mean(0)
    torch.testing.assert_close(run.personal["mu"], mean.expand(5, -1), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(run.shared["heads"], mean, rtol=1e-13, atol=1e-15)
    assert run.personal["own_share"].tolist() == pytest.approx([0.2] * 5, abs=1e-14)


def statistics(fed: Federation, j: int, base: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """V_j and H_j, class by class as the paper has them."""
    x, y = fed.examples(fed.train[j])
    z, n = features(base, x), len(y)
    h, v = torch.zeros(3, 5).double(), torch.zeros(()).double()
    for k in range(3):
        mine = z[y == k]
        if len(mine):
            share = len(mine) / n
            h[k] = share * mine.mean(0)
            v += share * (mine**2).sum(1).mean() - (share * mine.mean(0)).square().sum()
    return v / n, h


def best(v: Tensor, h: Tensor, j: int) -> Tensor:
    """The program's solution by looking at all supports: the best of the feasible stationary points."""
    matrix = torch.diag(v) + torch.stack([torch.stack([((h[j] - a) * (h[j] - b)).sum() for b in h]) for a in h])
    minimiser, least = torch.zeros(len(v)).double(), torch.inf
    for size in range(1, len(v) + 1):
        for support in map(list, subsets(range(len(v)), size)):
            x = torch.linalg.solve(matrix[support][:, support], torch.ones(size).double())
            alpha = torch.zeros(len(v)).double()
            alpha[support] = x / x.sum()
            value = float(alpha @ matrix @ alpha)
            if (alpha >= 0).all() and value < least:
                minimiser, least = alpha, value
    return minimiser


def trained(
    fed: Federation, chunk: ClientChunk, mu: Tensor, base: dict[str, Tensor], c: Tensor, known: list[bool]
) -> tuple[Tensor, dict[str, Tensor]]:
    """What a client makes of a round: first its head, by steps of its own, then the base, around the centroids."""
    (j,) = chunk.clients
    x, y = fed.examples(fed.train[j])
    for epoch in range(3):
        for batch in order_of(chunk, 0, 0, epoch).split(4):
            mu = mu.detach().requires_grad_()
            p = logits(mu, features(base, x[batch])).softmax(-1)
            loss = -p[torch.arange(len(batch)), y[batch]].log().mean()
            mu = mu - 0.2 * torch.autograd.grad(loss, mu)[0]
    mu = mu.detach()
    for epoch in range(2):
        for batch in order_of(chunk, 0, 1, epoch).split(4):
            base = {k: v.detach().requires_grad_() for k, v in base.items()}
            z, labels = features(base, x[batch]), y[batch].tolist()
            p = logits(mu, z).softmax(-1)
            loss = sum(-p[i, k].log() for i, k in enumerate(labels))
            loss = loss + 0.7 * sum(((z[i] - c[k]) ** 2).mean() for i, k in enumerate(labels) if known[k])
            slopes = torch.autograd.grad(loss / len(labels), list(base.values()))
            base = {k: v - 0.05 * g for (k, v), g in zip(base.items(), slopes, strict=True)}
    return mu, {k: v.detach() for k, v in base.items()}


def test_rounds_are_a_plain_loop_of_the_papers_formulas(skewed: Federation, net: Architecture) -> None:
    """Some report; the others train their own heads, which are in nobody's combination and stay as they are."""
    method = FedPAC(net, lam=0.7, momentum=0.0, head_lr=0.2, **COMMON)
    options = Options(rounds=5, participation=0.6, dtype=torch.float64, evaluate_every=10, seed=1)
    ready, c, known = Fit(method, skewed, options), torch.zeros(3, 5).double(), [False] * 3
    shared_heads = 0
    for number in range(1, 6):
        heads, theta = ready.fitted().personal["mu"].clone(), base_of(ready.state.shared)
        ready.step()
        who = ready.journal.status[-1].bool().nonzero().flatten().tolist()
        assert 0 < len(who) < 5
        made = [
            trained(skewed, ClientChunk(method, skewed, [j], number, 1, {}, {}), heads[j], theta, c, known)
            for j in range(5)
        ]
        v, h = (torch.stack(parts) for parts in zip(*(statistics(skewed, j, theta) for j in who), strict=True))
        expected = torch.stack([mu for mu, _ in made])
        shares = ready.fitted().personal["own_share"]
        for row, j in enumerate(who):
            alpha = best(v, h, row)
            expected[j] = sum(a * made[k][0] for a, k in zip(alpha, who, strict=True))
            assert float(shares[j]) == pytest.approx(float(alpha[row]), abs=1e-9)
            shared_heads += int((alpha > 1e-3).sum() > 1)
        torch.testing.assert_close(ready.fitted().personal["mu"], expected, rtol=1e-8, atol=1e-11)
        n = sum(len(skewed.train[j]) for j in who)
        for name in theta:
            mean = sum(len(skewed.train[j]) * made[j][1][name] for j in who) / n
            torch.testing.assert_close(ready.state.shared[name], mean, rtol=1e-9, atol=1e-12)
        for k in range(3):
            own = [features(made[j][1], skewed.x[skewed.train[j]])[skewed.y[skewed.train[j]] == k] for j in who]
            if len(torch.cat(own)):
                c[k], known[k] = torch.cat(own).mean(0), True
        torch.testing.assert_close(ready.state.shared["centroids"], c, rtol=1e-9, atol=1e-11)
    assert shared_heads > 5


@pytest.mark.parametrize("plate", [1, 2, 5])
def test_statistics_are_of_the_base_as_it_was_received(plate: int, skewed: Federation, net: Architecture) -> None:
    """Not of what training has made of it; and of all a client's examples, whoever is in the plate beside it."""
    method = FedPAC(net, **COMMON)
    chunk = rows_of(method, skewed)
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    assert (chunk.values["base.1.weight"] - chunk.shared["base.1.weight"]).abs().max() > 1e-2
    for first in range(0, 5, plate):
        part = chunk.part(first, min(5, first + plate))
        v, h = method.statistics(part)
        for row, j in enumerate(part.clients):
            expected = statistics(skewed, j, base_of(chunk.shared))
            torch.testing.assert_close(v[row], expected[0], rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(h[row], expected[1], rtol=1e-11, atol=1e-13)


def test_who_has_no_variance_keeps_its_head(net: Architecture) -> None:
    """A client whose examples are all the same one has nothing to gain; rounding makes no variance below zero."""
    fed = blobs([23, 6, 9, 4])
    same = fed.train[1][:1].expand(6)
    fed = dataclasses.replace(fed, train=[fed.train[0], same, *fed.train[2:]])
    for dtype in (torch.float32, torch.float64):
        run = fit(FedPAC(net, **COMMON), fed, rounds=4, dtype=dtype, progress=False)
        share = run.clients.set_index("client")["own_share"]
        assert float(share["place-01"]) == pytest.approx(1, abs=1e-4)
        assert (share.drop("place-01") < 0.9).all()
        assert run.last()["rejected"] == 0


def test_messages_are_individual_and_say_no_more_than_declared(skewed: Federation, net: Architecture) -> None:
    method = FedPAC(net, **COMMON)
    chunk = rows_of(method, skewed).own(method.network.base.names)
    server = Rounds(
        method, skewed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items() if k not in chunk.shared}
    )
    assert server.exchange.individual == ["heads"]
    messages = server.messages(chunk)
    assert set(messages["heads"]) == {"heads", "variance", "mean", "here"}
    assert server.receive(messages, chunk.clients).all()
    total = server.receiver.sums.totals["heads"]
    assert torch.equal(total["mean"][chunk.clients], messages["heads"]["mean"])
    for key, bad in (("variance", -1.0), ("here", 0.0), ("heads", 1e9)):
        server.begin()
        heads = messages["heads"]
        spoilt = {**messages, "heads": {**heads, key: torch.full_like(heads[key], bad)}}
        assert not server.receive(spoilt, chunk.clients).any(), key


def test_a_client_is_told_its_own_head_alone(skewed: Federation, net: Architecture) -> None:
    """What is broadcast holds one head's numbers, whoever there is; J heads are in replies, a row for each."""
    ready = Fit(FedPAC(net, **COMMON), skewed, Options(rounds=1, dtype=torch.float64, evaluate_every=10))
    ready.step()
    assert set(ready.state.shared) == {*net.base.names, "centroids", "centroids.counts", "heads"}
    assert ready.state.shared["heads"].shape == (net.head.d,)
    assert {k: tuple(v.shape) for k, v in ready.state.replies.items()} == {"mu": (5, net.head.d), "own_share": (5,)}
    assert torch.equal(ready.fitted().personal["mu"], ready.state.replies["mu"])


def test_the_servers_base_and_the_combined_head_predict(skewed: Federation, net: Architecture) -> None:
    run = fitted(FedPAC(net, **COMMON), skewed, 3)
    assert not run.fitted.copies
    for j in range(5):
        x, _ = skewed.examples(skewed.test[j])
        expected = logits(run.personal["mu"][j], features(base_of(run.shared), x)).softmax(-1)
        torch.testing.assert_close(run.predict(x, client=skewed.ids[j]).double(), expected, rtol=1e-9, atol=1e-12)
    assert run.evaluations[-1]["gm_accuracy"] is None


def test_a_new_client_fits_a_head(skewed: Federation, net: Architecture) -> None:
    run = fitted(FedPAC(net, **COMMON), skewed, 3)
    before = {k: v.clone() for k, v in run.shared.items()}
    x, y = (part.numpy() for part in skewed.examples(skewed.train[2]))
    known = [run.predict_new_client(x, given=(x, y), rounds=rounds)[:, 1].log().mean() for rounds in (1, 10)]
    assert known[1] > known[0]
    assert all(torch.equal(v, before[k]) for k, v in run.shared.items())


def test_a_resumed_run_is_the_same(skewed: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedPAC(net, **COMMON), skewed, tmp_path, 0.6)


def test_networks_and_data_that_fit(lines: Federation, skewed: Federation) -> None:
    with pytest.raises(UserError, match="fedpac has a centroid for every class: data with labels"):
        FedPAC(linear(lines))
    run = fitted(FedPAC(architecture("mlp:5,dropout=0.5", skewed), **COMMON), skewed, 2)
    assert all(v.isfinite().all() for v in (*run.shared.values(), *run.personal.values()))
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(FedPAC(norm, epochs=1), fed, 2), InitialWeights.for_network(norm, 0).base
    assert all((run.shared[k] - start[k]).abs().max() > 1e-6 for k in norm.base.names if k.endswith("running_mean"))


def test_whatever_adds_messages_up_refuses_them(skewed: Federation, net: Architecture) -> None:
    """A stage on their way, such as one of masks; and ranks."""

    class Masked(FedPAC):
        def pipeline(self) -> dict:
            return {"heads": [Codec(Quantise())]}

    method = Masked(net)
    shared = method.shared(InitialWeights.for_network(net, 0))
    with pytest.raises(UserError, match="looked at one by one: they pass no pipeline"):
        Exchange(method.exchange(), method.pipeline(), method.expand, shared)
    with pytest.raises(UserError, match="the messages of 'heads' are looked at one by one, and ranks send sums"):
        begin_on_a_rank(FedPAC(net), skewed)


@pytest.mark.slow
def test_ranks_refuse_them_on_the_command_line(hierfl: Call) -> None:
    code, _, err = hierfl("run", "fedpac", "--engine", "distributed", "--ranks", "2", "--rounds", "1", "--quiet")
    assert code != 0
    assert "the messages of 'heads' are looked at one by one, and ranks send sums: take engine plate" in err
    assert "Traceback" not in err
