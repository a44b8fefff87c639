"""Label shares in the likelihood of other methods: what is predicted, learned and refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs, slopes

from hierfl import Federation, UserError
from hierfl.inference import Method
from hierfl.models import FedPAC, FedROD, PFedHB, PFedVEM
from hierfl.nn.networks.build import architecture
from hierfl.ppl.label_shares import log_offset

METHODS = (FedROD, FedPAC, PFedVEM)


@pytest.fixture(scope="module")
def skewed() -> Federation:
    """Four clients with two of three classes each."""
    fed = blobs([18, 24, 12, 30])
    train = [t[fed.y[t] != j % 3] for j, t in enumerate(fed.train)]
    return dataclasses.replace(fed, train=train)


@pytest.mark.parametrize("method", METHODS)
def test_predictions_have_the_offset_of_the_clients_shares(method: type[Method], skewed: Federation) -> None:
    net = architecture("mlp:5", skewed)
    run = fitted(method(net, shares="on"), skewed, 3)
    hb = fitted(PFedHB(net, heads="off"), skewed, 3)
    for name in ("shares.log_kappa", "shares.log_beta", "shares.log_pooled"):
        torch.testing.assert_close(run.shared[name], hb.shared[name])  # the same counts, the same population
    x = skewed.x[skewed.test[1]]
    own, neutral = (run.predict(x, "place-01", shares=shares) for shares in ("own", "pooled"))
    equal = run.predict(x, "place-01", shares="uniform")
    reference = run.fitted.method.neutral_shares(run.shared)
    for predictions, shares in ((own, None), (equal, torch.full((3,), 1 / 3, dtype=own.dtype))):
        offset = run.personal["offset"][1] if shares is None else log_offset(shares, reference, 1e-4)
        pooled = log_offset(run.shared["shares.log_pooled"].exp(), reference, 1e-4)
        expected = (neutral.log() + offset - pooled).softmax(-1)
        torch.testing.assert_close(predictions, expected)
    assert run.personal["offset"][1, 1] < -1  # a class that it lacks


@pytest.mark.parametrize("method", METHODS)
def test_heads_learn_with_the_offset_and_nothing_is_there_without(method: type[Method], skewed: Federation) -> None:
    net = architecture("mlp:5", skewed)
    on, off = (fitted(method(net, shares=shares), skewed, 2) for shares in ("on", "off"))
    assert set(on.shared) - set(off.shared) == {f"shares.log_{name}" for name in ("kappa", "beta", "pooled")}
    assert "offset" not in off.personal
    head = {FedROD: "delta", FedPAC: "mu", PFedVEM: "mu"}[method]
    # logits of the class that a client lacks are pushed down by its data, and less where the offset says it
    biases = {name: run.personal[head][0].view(-1)[15:] for name, run in (("on", on), ("off", off))}
    start = 0.0 if method is FedROD else biases["on"].mean() - biases["off"].mean()
    assert biases["on"][0] - start > biases["off"][0]


def test_a_regression_has_no_label_shares() -> None:
    fed = slopes([5, 6, 7])
    with pytest.raises(UserError, match="pfedvem with shares=on has a population of label shares: data with labels"):
        PFedVEM(architecture("linear", fed), shares="on")
    PFedVEM(architecture("linear", fed))
