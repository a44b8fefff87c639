"""PFedHB where clients' labels mean other classes, or nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.baselines import fitted, rows_of
from support.federations import blobs
from support.part_simulations import entered

from hierfl import Federation, UserError
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import FedAvg, PFedHB
from hierfl.models.pfedhb.confusion import ConfusionPopulation
from hierfl.models.pfedhb.report import part_lines
from hierfl.models.pfedhb.trust import TrustedSpreads, trust_of
from hierfl.nn.networks.build import architecture
from hierfl.ppl.label_confusion import LabelConfusion, given_densities

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8, "heads": "off", "shares": "off", "draws": 8}
ROUNDS = 6


def changed(fed: Federation, j: int, y: torch.Tensor) -> Federation:
    """The federation with other labels of a client's training rows."""
    labels = fed.y.clone()
    labels[fed.train[j]] = y
    return dataclasses.replace(fed, y=labels)


@pytest.fixture(scope="module")
def fed() -> Federation:
    """Eight clients to whom the rows of four classes are dealt."""
    pool = blobs([40] * 8 + [60] * 2, classes=4)
    dealt = torch.cat(list(pool.train))[torch.randperm(440, generator=torch.Generator().manual_seed(0))]
    return dataclasses.replace(pool, train=list(dealt.split(44)))


@pytest.fixture(scope="module")
def shuffled(fed: Federation) -> Federation:
    """The first client's labels say nothing."""
    index = torch.cat([fed.train[0], fed.train[9][:20]])
    fed = dataclasses.replace(fed, train=[index, *fed.train[1:9], fed.train[9][20:]])
    return changed(fed, 0, fed.y[index][torch.randperm(64, generator=torch.Generator().manual_seed(3))])


def others(run: object, fed: Federation) -> float:
    """The mean NLL of the other clients' training rows."""
    total = 0.0
    for index, name in list(zip(fed.train, fed.ids, strict=True))[1:]:
        x, y = fed.x[index], fed.y[index]
        p = run.predict(x, client=str(name), draws=0)  # type: ignore[attr-defined]
        total -= float(p[range(len(y)), y].log().mean())
    return total / (fed.clients - 1)


@pytest.mark.cpu(6, "three fits: with the client, without it, and without the part")
def test_a_client_whose_labels_are_shuffled_is_flagged_and_does_not_hurt_others(shuffled: Federation) -> None:
    net, kinds = architecture("linear", shuffled), {"confusion": "on"}
    run = fitted(PFedHB(net, **COMMON, **kinds), shuffled, ROUNDS)
    trust = run.personal["trust"].flatten()
    assert trust[0] <= 0.1  # of its examples
    assert (trust[1:] == 1).all()
    rest = shuffled.select(range(1, 10))
    alone = fitted(PFedHB(net, **COMMON, **kinds), rest, ROUNDS)
    plain = fitted(PFedHB(net, **COMMON), shuffled, ROUNDS)
    nll = others(alone, shuffled)
    assert abs(others(run, shuffled) - nll) < 0.01
    assert others(plain, shuffled) - nll > 0.03  # as it is without
    assert "confused" in run.fitted.method.client_summary({**run.shared, **run.personal})


def test_permuted_labels_are_learned_and_the_base_is_fedavgs_where_no_client_is_flagged(fed: Federation) -> None:
    net, order = architecture("linear", fed), torch.tensor([1, 2, 3, 0])
    permuted = changed(fed, 0, order[fed.y[fed.train[0]]])
    run = fitted(PFedHB(net, **COMMON, confusion="on"), permuted, ROUNDS)
    b = run.personal["b_j_mean"][0].view(4, 4)
    assert torch.equal(b[order].argmax(-1), torch.arange(4))
    x = fed.x[fed.train[0]]
    own, neighbour, new = run.predict(x, client=0), run.predict(x, client=1), run.predict_new_client(x, draws=0)
    assert (own.argmax(-1) == order[neighbour.argmax(-1)]).double().mean() > 0.95
    torch.testing.assert_close(run.predict(x, client=0, draws=8), own, atol=0.2, rtol=0)
    given = run.predict_new_client(x, draws=0, given=(x, permuted.y[fed.train[0]]))
    torch.testing.assert_close(given, run.predict(x, client=0, draws=0))
    with pytest.raises(UserError, match="client_module is of those alone"):
        run.client_module(0)
    honest, fedavg = (fitted(m, fed, 3) for m in (PFedHB(net, **COMMON, confusion="on"), FedAvg(net, **_fedavg())))
    assert torch.equal(honest.shared["w"], fedavg.shared["w"])
    assert honest.evaluations[-1]["gm_nll"] == fedavg.evaluations[-1]["gm_nll"]
    torch.testing.assert_close(new, run.predict(x, client=1, draws=0), atol=0.01, rtol=0)  # the global model
    drawn = run.predict_new_client(x, draws=8)  # at draws of the population
    torch.testing.assert_close(drawn.sum(-1), torch.ones(len(x), dtype=drawn.dtype))


def _fedavg() -> dict[str, object]:
    return {k: v for k, v in COMMON.items() if k not in ("heads", "shares", "draws")}


def test_confusion_enters_where_labels_are_permuted_and_a_gain_is_beyond_what_all_have() -> None:
    by_truth = {truth: entered(truth, 2, "held", judged=4, parts=["confusion"]) for truth in ("none", "confusion")}
    assert [f["entered_confusion"] for f in by_truth.values()] == [0.0, 1.0]
    assert "label confusion: " in part_lines({**by_truth["confusion"], "rounds": 4})[0]


def test_the_populations_numbers_are_found_by_em() -> None:
    truth, clients, c = torch.tensor([0.3, 0.7, 2.0, 0.5]).double(), 400, 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        b = LabelConfusion(truth, c).sample(torch.Size([clients])).unflatten(-1, (c, c))
        y = torch.arange(c).repeat(12).expand(clients, -1)
        z = torch.distributions.Categorical(b.gather(1, y[..., None].expand(-1, -1, c))).sample()
    log_d = (60.0 * torch.nn.functional.one_hot(z, c).double()).log_softmax(-1)
    rule, kept = ConfusionPopulation("confusion", c), {}
    state = {"confusion.numbers": torch.tensor([0.1, 0.5, 1.0, 0.5]).double()}
    for k in range(20):
        given = given_densities(state["confusion.numbers"], log_d, y, None, 2)
        total = {key: value.sum(0) for key, value in given.sums().items()}
        context = AggregationContext(clients, torch.tensor(clients), k + 1, lambda names: {}, kept, state)
        state = rule.update(state, total, context)
    torch.testing.assert_close(state["confusion.numbers"], truth, rtol=0.15, atol=0.05)


def test_wrong_settings_are_said_and_little_doubt_costs_nothing(fed: Federation) -> None:
    assert trust_of(torch.tensor([0.0, 0.5, 0.95, 1.0])).tolist() == pytest.approx([1, 1, 0.05, 0.01])
    net = architecture("linear", fed)
    with pytest.raises(UserError, match="noise would hide: confusion=off"):
        fitted(PFedHB(net, **COMMON, confusion="on"), fed, 1, dp="client", epsilon=8.0)
    with pytest.raises(UserError, match="64 classes at most, not 65"):
        PFedHB(architecture("linear", blobs([70], classes=65)), confusion="on")
    chunk = rows_of(PFedHB(net, **COMMON, confusion="on"), fed)
    rules = chunk.method.exchange()
    sent = rules["w"].message(["w"], chunk.put({"w": chunk.shared["w"].expand(10, 1, -1)}))
    assert torch.equal(sent["weight"], chunk.n)


def test_confusion_goes_with_heads_of_which_a_flagged_client_says_as_little(fed: Federation) -> None:
    method = PFedHB(architecture("linear", fed), **{**COMMON, "heads": "on", "shares": "on"}, confusion="on", every=2)
    rule = method.exchange()["heads"]
    assert isinstance(rule, TrustedSpreads)
    assert (rule.turns, rule.judged) == (method.turns("heads"), True)
    run = fitted(method, fed, 2)
    assert set(run.clients) >= {"confused", "classes"}


def test_nodes_of_rho_hear_as_little_of_a_flagged_client(fed: Federation) -> None:
    method = PFedHB(architecture("linear", fed), **{**COMMON, "heads": "on"}, confusion="on", nodes="on")
    rule, chunk = method.exchange()["at_nodes"], dataclasses.replace(rows_of(method, fed), round=3)
    k, b = chunk.shared["at_nodes.log_rho"].shape
    rows = len(chunk.clients)
    left = {"score": torch.ones(rows, 1, k, b), "information": torch.ones(rows, 1, k, b, b)}
    left = {f"at_nodes/{key}": value.double() for key, value in {**left, "gain": torch.ones(rows, 1, k, 1)}.items()}
    trust = torch.ones(rows, 1, 1).double()
    trust[2] = 0.01
    sent = rule.message(["at_nodes.log_rho"], chunk.put({**left, "trust": trust}))
    expected = trust.flatten()
    for value in sent.values():
        assert torch.equal(value.flatten(1), expected[:, None].expand(rows, value[0].numel()))


def test_a_fit_that_ends_before_parts_are_decided_says_so(fed: Federation, caplog: pytest.LogCaptureFixture) -> None:
    for rounds, judged in ((1, 3), (1, 1)):
        caplog.clear()
        fitted(PFedHB(architecture("linear", fed), **COMMON, confusion="auto", judged=judged), fed, rounds)
        lines = [line for line in caplog.messages if "parts on auto are decided by round 3, and this fit has 1" in line]
        assert len(lines) == (judged > rounds)


def test_trust_alone_changes_nothing_where_nobody_is_flagged_and_weighs_where_one_is(fed: Federation) -> None:
    net = architecture("linear", fed)
    guarded, plain = (fitted(PFedHB(net, **COMMON, confusion=c), fed, 2) for c in ("trust", "off"))
    assert torch.equal(guarded.shared["w"], plain.shared["w"])
    assert guarded.evaluations[-1]["pm_nll"] == plain.evaluations[-1]["pm_nll"]
    assert "confused" in guarded.clients
    method = guarded.fitted.method
    chunk, trust = dataclasses.replace(rows_of(method, fed), round=2), torch.ones(10, 1, 1).double()
    trust[0] = 0.01
    sent = method.exchange()["w"].message(["w"], chunk.put({"w": chunk.shared["w"].expand(10, 1, -1), "trust": trust}))
    assert torch.equal(sent["weight"], chunk.n * trust.flatten())
    # not in the first round, nor while all labels seem to mean something else
    unsure = {**chunk.shared, "confusion.numbers": torch.tensor([0.6, 0.6, 1.0, 1.0]).double()}
    for early in (dataclasses.replace(chunk, round=1), dataclasses.replace(chunk, shared=unsure)):
        early = early.put({"w": chunk.shared["w"].expand(10, 1, -1), "trust": trust})
        assert torch.equal(method.exchange()["w"].message(["w"], early)["weight"], chunk.n)
