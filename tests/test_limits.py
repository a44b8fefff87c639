"""The identities that make the table of limits true, and the traps of public code that would change a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from support.baselines import WHOLE, Quadratics, fitted, linear, rows_of, slope_at
from support.federations import blobs, pictures
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.experiments.methods import load
from hierfl.inference import SVI, Method, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import UniformMean
from hierfl.models import (
    APFL,
    DGLMC,
    IFCA,
    L2GD,
    METHODS,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProx,
    FedRep,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedMe,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict
from hierfl.rng import permutation

# -- one vector -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["mlp:5,4", "cnn:2,3:6", "linear", "bncnn:2:5"])
def test_a_network_is_a_function_of_one_vector(spec: str) -> None:
    fed = blobs([6, 4], features=16) if spec.startswith(("mlp", "lin")) else pictures()
    net = architecture(spec, fed)
    start = InitialWeights.of(net, 0)
    base = {k: v.double() for k, v in start.base.items()}
    x = fed.batch([0, 1]).x
    apart = net.head(start.head, net.base.apply(net.base.parameters_from(base), x))
    vector = net.vector(base, start.head)
    assert vector.shape == (net.d,)
    method = FedProx(net)
    with Restrict({**base, "w": vector}):
        together = net(vector, x)
        rows = net(torch.stack([vector, 2 * vector]).unsqueeze(1), x)
        if "bn" in spec:
            with pytest.raises(UserError, match="batch norm"):
                net(vector.expand(3, 2, 1, -1), x)
        else:
            draws = net(torch.stack([vector, 2 * vector])[:, None, None].expand(2, 2, 1, -1), x)
            assert torch.allclose(draws[0], apart, rtol=1e-12)
            assert torch.allclose(draws[1, 1], rows[1], rtol=1e-12)
    assert torch.allclose(together, apart, rtol=1e-12)
    assert torch.allclose(rows[0], apart[0], rtol=1e-12)
    assert method.shared(start).keys() == {"w", *net.statistics(start.base)}


def test_a_prior_without_strength_leaves_fedavg(small: Federation, net: Architecture) -> None:
    """mu -> 0: FedProx, written on one vector, takes FedAvg's minibatch steps, layer by layer."""
    common = {"epochs": 2, "lr": 0.05, "batch": 4, "momentum": 0.9}
    prox, avg = fitted(FedProx(net, mu=1e-12, **common), small, 3), fitted(FedAvg(net, **common), small, 3)
    expected = net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(prox.shared["w"], expected, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(prox.shared["w"], FedProx(net).begin(InitialWeights.of(net, 0)), atol=1e-3)


# -- FedProx --------------------------------------------------------------------------------------------------------


def test_fedprox_is_coordinate_ascent_on_the_hierarchical_model(lines: Federation) -> None:
    """Exact inner solves and n_j weights: w_j and w are set in turn to the maxima of log p(D, w_1..w_J | w)."""
    mu, quadratics = 2.0, Quadratics(lines)
    method = FedProx(linear(lines), mu=mu, epochs=250, lr=0.03, batch=WHOLE, momentum=0.8)
    w = method.begin(InitialWeights.of(method.network, 0)).double()
    for _ in range(3):
        own = quadratics.around(w, mu * quadratics.n)
        w = (quadratics.n[:, None] * own).sum(0) / quadratics.n.sum()
    run = fitted(method, lines, 3)
    assert torch.allclose(run.shared["w"], w, rtol=1e-9, atol=1e-10)
    # ... and the maximum in w given the w_j is where the joint's gradient in w vanishes
    chunk = rows_of(method, lines)
    precision = mu * chunk.n[:, None]
    own = own[chunk.clients]
    assert torch.allclose((precision * (own - w)).sum(0), torch.zeros_like(w), atol=1e-10)


def test_fedproxs_steps_are_a_plain_loops(small: Federation, net: Architecture) -> None:
    """v <- v - eta m, m <- 0.9 m + grad f(v) + mu (v - w): the proximal term enters the momentum once a step."""
    method = FedProx(net, mu=0.7, epochs=2, lr=0.05, batch=4)
    chunk = rows_of(method, small)
    trained = method.local()[0].run(chunk, 0).values["w"]
    for place, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        v = w = chunk.shared["w"]
        moment = torch.zeros_like(v)
        for epoch in range(2):
            for batch in permutation(len(y), *chunk.key(0, place), "epoch", epoch).split(4):
                slope = slope_at(net, v, x, y, batch)
                moment = 0.9 * moment + slope + 0.7 * (v - w)
                v = v - 0.05 * moment
        assert torch.allclose(trained[place, 0], v, rtol=1e-9, atol=1e-12)


# -- pFedMe and L2GD ------------------------------------------------------------------------------------------------


def stationary(fed: Federation, strength: float) -> tuple[Tensor, Tensor]:
    """Where sum_j [f_j(x_j) + (strength / 2) |x_j - w|^2] is least, f_j mean losses: w (d,) and x_j (J, d)."""
    quadratics = Quadratics(fed)
    d = len(quadratics.b[0])
    eye = torch.eye(d, dtype=torch.float64)
    H = [A / n for A, n in zip(quadratics.A, quadratics.n, strict=True)]
    shrink = [strength * torch.linalg.inv(h + strength * eye) for h in H]
    pull = [s @ b / n / strength for s, b, n in zip(shrink, quadratics.b, quadratics.n, strict=True)]
    w = torch.linalg.solve(sum(eye - s for s in shrink), sum(pull))
    return w, quadratics.around(w, strength * quadratics.n)


def test_pfedme_and_l2gd_reach_the_same_stationary_point(lines: Federation) -> None:
    """A plain mean goes with one rho^2 = 1 / lambda and likelihoods raised to 1 / n_j."""
    lam = 1.5
    w, own = stationary(lines, lam)
    net = linear(lines)
    # exact inner solves: the copy takes one step of half the way to theta_j
    me = PFedMe(net, lam=lam, rounds=1, steps=60, lr=0.15, w_lr=0.9 / lam, batch=WHOLE)
    run = fitted(me, lines, 40)
    assert torch.allclose(run.shared["w"], w, rtol=1e-7, atol=1e-8)
    assert torch.allclose(run.personal["theta"], own, rtol=1e-6, atol=1e-7)
    # L2GD's expected operator does not move it: each turn's length times its probability is lr (1 - p)
    l2 = L2GD(net, lam=lam, p=0.3, lr=0.05, batch=WHOLE)
    chunk = rows_of(l2, lines, w=w)
    rows = {"mu": own[chunk.clients].unsqueeze(1)}
    expected, mean = torch.zeros_like(own), dict.fromkeys(("prior", "data"), 0.0)
    for step, terms, share in zip(l2.local(), ("prior", "data"), (0.3, 0.7), strict=True):
        assert step.terms == terms
        once = SVI(["mu"], 1, step.optimizer, per="example", terms=terms).run(chunk.put(rows), 0)
        moved = share * (once.values["mu"] - rows["mu"]).squeeze(1)
        assert moved.abs().max() > 1e-3
        expected = expected + moved
        mean[terms] = moved.mean(0).abs().max()
    assert expected.abs().max() < 1e-10
    assert mean["prior"] < 1e-10  # turns towards the mean leave the mean
    # ... and the random turns hover around it, the nearer the shorter they are
    far = []
    for lr in (0.08, 0.02):
        run = fitted(L2GD(net, lam=lam, p=0.3, lr=lr, batch=WHOLE), lines, int(10 / lr))
        far.append(float((run.personal["mu"] - own).square().mean().sqrt()))
    assert far[1] < far[0] < 0.5
    assert far[1] < 0.15


def test_pfedmes_turns_are_the_papers(small: Federation, net: Architecture) -> None:
    """K steps on theta with a minibatch, then w_j <- w_j - eta lambda (w_j - theta); plain mean, server_lr."""
    s = {"rounds": 3, "steps": 4, "lr": 0.07, "w_lr": 0.03, "lam": 5.0, "batch": 5}
    method, phase = PFedMe(net, server_lr=0.5, **s), 1
    chunk = rows_of(method, small)
    done = chunk
    for number, step in enumerate(method.local()):
        done = step.run(done, number)
    copies = []
    for place, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        theta = w = chunk.shared["w"]
        epochs = [permutation(len(y), *chunk.key(phase, place), "epoch", e).split(5) for e in range(3)]
        for batch in [b for epoch in epochs for b in epoch][:3]:
            for _ in range(4):
                slope = slope_at(net, theta, x, y, batch)
                theta = theta - 0.07 * (slope + 5.0 * (theta - w))
            w = w - 0.03 * 5.0 * (w - theta)
        assert torch.allclose(done.values["theta"][place, 0], theta, rtol=1e-9, atol=1e-11)
        assert torch.allclose(done.values["w"][place, 0], w, rtol=1e-9, atol=1e-11)
        copies.append(w)
    run = fitted(method, small, 1)
    assert torch.allclose(run.shared["w"], 0.5 * chunk.shared["w"] + 0.5 * torch.stack(copies).mean(0), rtol=1e-9)


def test_l2gds_turns_come_in_runs_that_all_clients_share(small: Federation, net: Architecture) -> None:
    method = L2GD(net, p=0.3)
    towards, along = method.local()
    lengths = {step: [] for step in ("towards", "along")}
    for number in range(1, 4001):
        chunk = ClientChunk(method, small, [0], number, 0, {}, {}, examples=object())  # type: ignore[arg-type]
        lengths["towards"].append(towards.steps(chunk))
        lengths["along"].append(along.steps(chunk))
    for name, stop in (("towards", 0.7), ("along", 0.3)):
        values = torch.tensor(lengths[name], dtype=torch.float64)
        assert values.min() == 1
        error = (values.std() / 4000**0.5).item()
        assert abs(values.mean().item() - 1 / stop) < 4 * error


# -- FedRep and LG-FedAvg -------------------------------------------------------------------------------------------


def test_fedrep_with_a_common_frozen_head_is_fedavg_on_the_base(small: Federation, net: Architecture) -> None:
    class FrozenHead(FedAvg):
        def local(self) -> list:
            return [SVI([], 0, sgd(0.1)), self.sgd("base")]  # (the base comes second, as FedRep's does)

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
    one, two = LGFedAvg(net), LGFedAvg(net, top=2)
    start = InitialWeights.of(net, 0)
    assert set(one.shared(start)) == {"w"}
    assert set(two.shared(start)) == {"w", "base.3.weight", "base.3.bias"}
    assert set(two.personal(start)) == {"base.1.weight", "base.1.bias"}
    with pytest.raises(UserError, match="top=3"):
        LGFedAvg(net, top=3)
    run = fitted(two, small, 2)
    assert run.personal["base.1.weight"].std(0).min() > 0
    assert not run.fitted.copies  # predictions are with the top as it was averaged
    first = two.local()[0].run(rows_of(two, small), 0)
    once = fitted(two, small, 1)
    for name in ("w", "base.3.weight"):
        mean = (first.n.view(-1, *[1] * (first.values[name].dim() - 2)) * first.values[name].squeeze(1)).sum(
            0
        ) / first.n.sum()
        assert torch.allclose(once.shared[name], mean, rtol=1e-9), name


def test_lg_fedavg_keeps_batch_norm_with_its_layer() -> None:
    net = architecture("bncnn:2:5", pictures())
    method = LGFedAvg(net, top=2)
    shared = set(method.shared(InitialWeights.of(net, 0)))
    norm = {k for k in net.base.norm_names if k in shared}
    assert norm
    assert {k.rpartition(".")[2] for k in norm} == {"weight", "bias", "running_mean", "running_var"}
    fitted(method, pictures(), 1)


# -- networks, newcomers, evaluation --------------------------------------------------------------------------------


def test_batch_norm_is_averaged_or_refused() -> None:
    fed = pictures()
    net = architecture("bncnn:2:5", fed)
    for method in (PFedMe, L2GD, PFedBayes, DGLMC, Ditto, APFL):
        with pytest.raises(UserError, match="no running statistics of batch norm"):
            method(net)
    with pytest.raises(UserError, match="no running statistics"):
        IFCA(net, scope="all")
    for method in (FedProx, Scaffold, FedAvgFT, PerFedAvg, IFCA):
        run = fitted(method(net), fed, 1)
        before = InitialWeights.of(net, 0).base
        moved = [k for k in net.base.names if k.endswith("running_mean")]
        assert all((run.shared[k] - before[k]).abs().max() > 1e-6 for k in moved), method.__name__
    # ... as FedAvg does it
    common = {"epochs": 1, "lr": 0.01, "batch": WHOLE, "momentum": 0.0}
    prox, avg = fitted(FedProx(net, mu=1e-12, **common), fed, 2), fitted(FedAvg(net, **common), fed, 2)
    for name in net.statistics(InitialWeights.of(net, 0).base):
        assert torch.allclose(prox.shared[name], avg.shared[name], rtol=1e-8), name


def test_a_prior_alone_needs_no_dropout(small: Federation) -> None:
    net = architecture("mlp:6,dropout=0.5", small)
    for method in (PFedMe(net, rounds=2), L2GD(net), PFedBayes(net, batch=4), Ditto(net), FedProx(net)):
        fitted(method, small, 2)
    with pytest.raises(UserError, match="no dropout"):
        PerFedAvg(net)


def test_a_new_client_begins_with_what_the_federation_has_learned(small: Federation, net: Architecture) -> None:
    x, y = (part.numpy() for part in small.examples(small.train[0]))
    run = fitted(PFedMe(net, lam=1.0, rounds=5, lr=0.05, w_lr=0.1), small, 10)
    population = run.predict_new_client(x)
    close = run.predict_new_client(x, given=(x, y))
    assert (population - close).abs().max() > 1e-3
    unseen = PFedMe(net).network(
        PFedMe(net).begin(InitialWeights.of(net, 0)).double(), small.examples(small.train[0])[0][None]
    )
    assert (close - unseen[0].softmax(-1)).abs().max() > 0.05
    clusters = fitted(IFCA(net), small, 3)
    assert clusters.fitted.method.init_new_client(clusters.personal, {})["label"] in (0, 1)


def test_who_adapts_before_every_evaluation_has_a_best_round(small: Federation, net: Architecture) -> None:
    held = dataclasses.replace(small, validation=[t[:1] for t in small.train])
    run = fit(FedAvgFT(net), held, rounds=3, dtype=torch.float64, progress=False)
    assert run.best()["split"] == "test"
    losses = [row["pm_nll"] - row["gm_nll"] for row in run.evaluations if row["split"] == "test"]
    assert all(abs(gap) > 1e-4 for gap in losses)


@pytest.mark.parametrize("method", [FedAvgFT, PerFedAvg, partial(IFCA, clusters=3, init_scale=2.0, lr=0.3)])
def test_an_evaluation_on_the_way_is_what_the_last_one_would_have_been(
    method: Callable[[Architecture], Method], small: Federation, net: Architecture
) -> None:
    on, last = (fit(method(net), small, rounds=r, dtype=torch.float64, progress=False).evaluations for r in (3, 1))
    assert on[0]["round"] == last[0]["round"] == 1
    assert on[0]["pm_nll"] == last[0]["pm_nll"] != on[1]["pm_nll"]


# -- rules that all of them share -----------------------------------------------------------------------------------


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
    assert ((run.personal["mu"] - Local(net).personal(InitialWeights.of(net, 0))["mu"]).abs().amax(1) > 1e-4).all()


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
    begin = FedProx(net).begin(InitialWeights.of(net, 0)).double()
    assert (fitted(FedProx(net), small, 2).shared["w"] - vector).abs().max() > 1e-3
    assert (fitted(Ditto(net), small, 2).personal["v"] - locals_).abs().max() > 1e-2
    assert (fitted(APFL(net), small, 2).personal["v"] - locals_).abs().max() > 1e-2
    assert (fitted(PFedMe(net), small, 2).shared["w"] - begin).abs().max() > 1e-3
    assert (
        fitted(PFedBayes(net), small, 2).shared["spread"] - PFedBayes(net).spread(InitialWeights.of(net, 0))
    ).abs().max() > 1e-6
    assert (fitted(FedPer(net), small, 2).shared["base.1.weight"] - avg.shared["base.1.weight"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.message_size is not None])
def test_what_the_list_of_methods_says_of_messages(name: str) -> None:
    """What is sent relative to FedAvg, for mlp:100 on 28x28 images of ten classes; and that something is, if so."""
    y = np.arange(20) % 10
    x = np.random.default_rng(0).normal(size=(20, 1, 28, 28))
    fed = Federation.from_arrays(x, y, np.arange(20) // 10, test=0.0, validation=0.0)
    sent = []
    for one in (name, "fedavg"):
        cls = load(one).cls
        ready = Fit(cls(architecture("mlp:100", fed, latent=cls.latent)), fed, Options(rounds=9))
        ready.step()
        sent.append(ready.state.bytes)
    entry = METHODS[name]
    assert round(sent[0] / sent[1], 2) == entry.message_size
    assert (entry.sent == "nothing") == (sent[0] == 0)
