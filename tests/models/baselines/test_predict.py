"""What the baselines' personal models are when they predict: told again in plain torch, from what the run holds."""

from __future__ import annotations

import pytest
import torch
from support.baselines import fitted, slope_at
from support.federations import pictures
from torch import Tensor
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.inference.run.result import Run
from hierfl.models import APFL, IFCA, Ditto, FedAvgFT, FedBN, FedPer, PerFedAvg
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.rng import permutation

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}


def assert_says(run: Run, fed: Federation, j: int, expected: Tensor) -> None:
    """Predictions for a client's test inputs are these logits', and those of no other client."""
    x = fed.examples(fed.test[j])[0]
    torch.testing.assert_close(run.predict(x, client=fed.ids[j]).double(), expected.softmax(-1), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(run.predict(x, client=fed.ids[(j + 1) % fed.clients]).double(), expected.softmax(-1))


def logits(net: Architecture, vector: Tensor, fed: Federation, j: int) -> Tensor:
    return net(vector, fed.examples(fed.test[j])[0][None])[0]


def test_ditto_predicts_with_v(small: Federation, net: Architecture) -> None:
    run = fitted(Ditto(net, lam=0.5, **COMMON), small, 3)
    for j, v in enumerate(run.personal["v"]):
        assert_says(run, small, j, logits(net, v, small, j))


def test_apfl_predicts_with_the_mixture_of_v_and_w_as_it_is_now(small: Federation, net: Architecture) -> None:
    run = fitted(APFL(net, alpha_lr=0.1, **COMMON), small, 3)
    assert run.personal["alpha"].std() > 0
    for j, (v, alpha) in enumerate(zip(run.personal["v"], run.personal["alpha"], strict=True)):
        assert_says(run, small, j, logits(net, alpha * v + (1 - alpha) * run.shared["w"], small, j))


@pytest.mark.parametrize("scope", ["head", "all"])
def test_ifca_predicts_with_the_cluster_that_is_likeliest_now(scope: str, small: Federation, net: Architecture) -> None:
    """With heads drawn wide clients change their minds: the label is that of the last round's clusters."""
    method = IFCA(net, clusters=3, scope=scope, init_scale=2.0, **{**COMMON, "lr": 0.3})
    run, stale = fitted(method, small, 1), []
    for j in range(small.clients):
        x, y = small.examples(small.train[j])
        w = run.shared["w"]
        vectors = w if scope == "all" else torch.stack([net.vector(run.shared, head) for head in w])
        losses = torch.stack([cross_entropy(net(v, x[None])[0], y) for v in vectors])
        best = int(losses.argmin())
        assert int(run.personal["label"][j]) == best
        x_test = small.examples(small.test[j])[0]
        expected = logits(net, vectors[best], small, j).softmax(-1)
        torch.testing.assert_close(run.predict(x_test, client=small.ids[j]).double(), expected, rtol=1e-9, atol=1e-12)
        stale.append(int(before_training(method, small)[j]) != best)
    assert any(stale)


def before_training(method: IFCA, fed: Federation) -> Tensor:
    """The labels under the initial clusters, with which the first round trains."""
    return fitted(method, fed, 0).personal["label"].flatten()


def test_fedbn_predicts_with_the_mean_and_its_own_norms() -> None:
    fed = pictures()
    net = architecture("bncnn:2:5", fed)
    run = fitted(FedBN(net, **COMMON), fed, 2)
    for j in range(fed.clients):
        base = {k: run.personal[k][j] if k in run.personal else run.shared[k] for k in net.base.names}
        x = fed.examples(fed.train[j])[0]
        expected = net.head(run.shared["w"], net.base.apply(net.base.parameters_from(base), x[None]))[0].softmax(-1)
        torch.testing.assert_close(run.predict(x, client=fed.ids[j]).double(), expected, rtol=1e-9, atol=1e-12)


def test_fedper_predicts_with_the_base_as_it_was_trained_at_home(small: Federation, net: Architecture) -> None:
    run = fitted(FedPer(net, **COMMON), small, 2)
    for j, head in enumerate(run.personal["mu"]):
        own = {k: v[j] for k, v in run.fitted.copies.items()}
        assert all(not torch.equal(own[k], run.shared[k]) for k in net.base.names)
        assert_says(run, small, j, logits(net, net.vector(own, head), small, j))


@pytest.mark.parametrize("scope", ["head", "all"])
def test_fedavg_fts_fit_is_plain_descent_from_w(scope: str, small: Federation, net: Architecture) -> None:
    method = FedAvgFT(net, scope=scope, ft_epochs=3, ft_lr=0.02, momentum=0.0, **COMMON)
    run = fitted(method, small, 2)
    w, moves = run.shared["w"], torch.arange(net.d) >= (net.d - net.head.d if scope == "head" else 0)
    for j in range(small.clients):
        x, y = small.examples(small.train[j])
        v = w
        for epoch in range(3):
            for batch in permutation(len(y), small.ids[j], 0, 2, ("posterior", 0), "epochs", number=epoch).split(4):
                v = v - 0.02 * slope_at(net, v, x, y, batch).where(moves, 0)
        torch.testing.assert_close(run.personal["offset"][j], (v - w)[moves], rtol=1e-8, atol=1e-11)
        assert_says(run, small, j, logits(net, v, small, j))


def test_per_fedavgs_fit_goes_by_alpha(small: Federation, net: Architecture) -> None:
    run = fitted(PerFedAvg(net, steps=2, alpha=0.2, lr=0.03, batch=4), small, 2)
    for j in range(small.clients):
        x, y = small.examples(small.train[j])
        v = run.shared["w"]
        for batch in permutation(len(y), small.ids[j], 0, 2, ("posterior", 0), "epochs").split(4):
            v = v - 0.2 * slope_at(net, v, x, y, batch)
        assert_says(run, small, j, logits(net, v, small, j))
