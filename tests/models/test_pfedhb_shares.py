"""PFedHB's predictions for other label shares, and evaluation with test labels that are balanced or have shifted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.baselines import fitted
from support.federations import blobs, slopes

from hierfl import Federation, UserError
from hierfl.inference.evaluation.protocols import evaluate_protocols
from hierfl.inference.evaluation.test_rows import label_counts, under_protocol
from hierfl.inference.run.result import Run
from hierfl.models import FedAvg, FedPer, FedROD, PFedHB
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8}


@pytest.fixture(scope="module")
def skewed() -> Federation:
    """Ten clients that have two of four classes each, in training and test data, all from the same centres."""
    fed = blobs([560], classes=4, test=4)
    pooled, parts = fed.train[0], {}
    for split, index in (("train", pooled[:320]), ("test", pooled[320:])):
        each = [index[fed.y[index] == label].chunk(5) for label in range(4)]
        parts[split] = [torch.cat([each[(j + k) % 4][(j // 2) % 5] for k in (0, 1)]) for j in range(10)]
    nothing = [torch.empty(0, dtype=torch.long)] * 10
    return dataclasses.replace(fed, **parts, validation=nothing, ids=[f"place-{j}" for j in range(10)])


@pytest.fixture(scope="module")
def run(skewed: Federation) -> Run:
    return fitted(PFedHB(architecture("mlp:5", skewed), **COMMON, heads="off"), skewed, 5)


def test_predictions_for_shares_are_the_global_model_with_an_offset(skewed: Federation, run: Run) -> None:
    x = skewed.x[skewed.test[3]]
    f = run.predict_new_client(x, draws=0)
    m = run.shared["shares.log_pooled"].softmax(-1)
    torch.testing.assert_close(run.predict(x, "place-3", shares="pooled"), f)
    assert torch.equal(run.predict(x, "place-3", shares="own"), run.predict(x, "place-3"))
    uniform = f * (1e-4 + (1 - 1e-4) * 0.25 / m)
    torch.testing.assert_close(run.predict(x, "place-3", shares="uniform"), uniform / uniform.sum(-1, keepdim=True))


def test_shares_from_inputs_are_nearly_those_of_their_labels(skewed: Federation, run: Run) -> None:
    index = skewed.test[7]  # of other classes than client 2's
    assert set(skewed.y[index].tolist()) != set(skewed.y[skewed.train[2]].tolist())
    y, of_others = skewed.y[index], skewed.x[index]
    nll = {shares: -run.predict(of_others, "place-2", shares=shares)[range(len(y)), y].log().mean()
           for shares in ("own", "test", "uniform")}  # fmt: skip
    assert nll["test"] < nll["uniform"] - 0.05 < nll["own"] - 1
    # the same inputs at another client have the same shares, but for noise, and draws of heads that there are not
    other = run.predict(of_others, "place-5", shares="test", draws=100)
    torch.testing.assert_close(other, run.predict(of_others, "place-2", shares="test"), atol=0.1, rtol=0)


def test_what_cannot_be_predicted_is_one_line(skewed: Federation, run: Run) -> None:
    x = skewed.x[skewed.test[0]]
    with pytest.raises(UserError, match=r"^unknown shares 'mine'; known: own, test, uniform, pooled"):
        run.predict(x, "place-0", shares="mine")
    with pytest.raises(UserError, match="from at least 2 inputs of a client together, not 1"):
        run.predict(x[:1], "place-0", shares="test")
    plain = fitted(FedAvg(architecture("mlp:5", skewed), **COMMON), skewed, 0)
    with pytest.raises(UserError, match="fedavg has no label shares, which shares=test would set; pfedhb has"):
        plain.predict(x, "place-0", shares="test")
    with pytest.raises(UserError, match=r"unknown protocol 'mine'"):
        evaluate_protocols(run.fitted, ["mine"])
    local = fitted(FedPer(architecture("mlp:5", skewed), **COMMON), skewed, 0)
    with pytest.raises(UserError, match="fedper has no global model that an offset could be put on"):
        evaluate_protocols(local.fitted, offset=True)
    fed = slopes([9, 9])
    regression = fitted(FedAvg(architecture("linear", fed)), fed, 0)
    with pytest.raises(UserError, match="protocols are of labels, and this is a regression"):
        evaluate_protocols(regression.fitted)


def test_shares_that_have_not_entered_are_said(skewed: Federation) -> None:
    model = PFedHB(architecture("mlp:5", skewed), **COMMON, heads="off", shares="auto")
    auto, x = fitted(model, skewed, 0), skewed.x[skewed.test[0]]
    for shares in ("test", "uniform", "pooled"):
        with pytest.raises(UserError, match=rf"not in this model \(shares=auto\): shares={shares} would"):
            auto.predict(x, "place-0", shares=shares)
    assert torch.equal(auto.predict(x, "place-0", shares="own"), auto.predict(x, "place-0"))
    assert {row["shares"] for row in evaluate_protocols(auto.fitted, ["own"])} == {""}
    # and where they have entered they are there
    shared = {**auto.fitted.shared, "parts.shares": torch.ones_like(auto.fitted.shared["parts.shares"])}
    inside = dataclasses.replace(auto.fitted, shared=shared)
    assert {row["shares"] for row in evaluate_protocols(inside, ["own"])} == {"", "own", "test", "uniform", "pooled"}


def test_protocols_have_the_labels_that_they_say(skewed: Federation) -> None:
    own = label_counts(skewed, "test")
    balanced = label_counts(under_protocol(skewed, "balanced", 1), "test")
    assert bool((balanced == balanced[0, 0]).all())
    shifted = under_protocol(skewed, "shifted", 1)
    moved = label_counts(shifted, "test")
    assert sorted(map(tuple, moved.tolist())) == sorted(map(tuple, own.tolist()))
    assert not bool((moved == own).all())
    again = under_protocol(skewed, "shifted", 1)
    assert all(torch.equal(a, b) for a, b in zip(shifted.test, again.test, strict=True))
    for index in shifted.test:
        assert len(index.unique()) == len(index)
    # where clients have every class the rows are their own
    complete = blobs([9, 9, 9])
    for protocol in ("balanced", "shifted"):
        for mine, whole in zip(under_protocol(complete, protocol, 0).test, complete.test, strict=True):
            assert set(mine.tolist()) <= set(whole.tolist())


def test_a_fit_under_the_protocols(skewed: Federation, run: Run) -> None:
    """Own shares gain with own labels, and are wrong where these have shifted; shares from inputs gain in both."""
    results = evaluate_protocols(run.fitted, ["own", "shifted"])
    rows = {(r["protocol"], r["predictions"], r["shares"]): r for r in results}
    assert all(r["transductive"] == (key[2] == "test") for key, r in rows.items())
    for protocol in ("own", "shifted"):
        as_it_is = rows[protocol, "gm", ""]["nll"]
        assert rows[protocol, "pm", "pooled"]["nll"] == pytest.approx(as_it_is, abs=1e-6)
        assert rows[protocol, "pm", "test"]["nll"] < as_it_is - 0.03
    assert rows["own", "pm", "own"]["nll"] == pytest.approx(run.last()["pm_nll"])
    assert rows["own", "pm", "own"]["nll"] < rows["own", "gm", ""]["nll"] - 0.1
    assert rows["shifted", "pm", "own"]["nll"] > rows["shifted", "gm", ""]["nll"] + 1


@pytest.mark.cpu(5, "three fits, and shares estimated from inputs four times")
def test_an_offset_on_a_balanced_global_model_is_to_equal_shares(skewed: Federation) -> None:
    model = FedROD(architecture("mlp:5", skewed), **COMMON)
    # Every client trains on its own two classes, but classes are not equally frequent in all.
    fewer = dataclasses.replace(skewed, train=[t[:: 1 + j % 3] for j, t in enumerate(skewed.train)])
    rows = evaluate_protocols(fitted(model, fewer, 2).fitted, ["balanced"], offset=True)
    nll = {(r["predictions"], r["shares"]): r["nll"] for r in rows}
    assert nll["gm", "uniform"] == pytest.approx(nll["gm", ""], abs=1e-9)
    assert not np.isclose(nll["gm", "pooled"], nll["gm", ""], atol=1e-6)
    # on FedAvg's model it is the method without heads, when EM has converged
    avg, hb = (fitted(cls(architecture("mlp:5", fewer), **COMMON, **more), fewer, 15)
               for cls, more in ((FedAvg, {}), (PFedHB, {"heads": "off"})))  # fmt: skip
    offset, method = (evaluate_protocols(run.fitted, ["own"], offset=run is avg) for run in (avg, hb))
    on_fedavg = next(r for r in offset if r["shares"] == "own")
    own = next(r for r in method if (r["predictions"], r["shares"]) == ("pm", "own"))
    assert on_fedavg["nll"] == pytest.approx(own["nll"], abs=5e-3)
