"""Labels and inputs as people have them, and what is asked where they may be two things."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import Federation, UserError
from hierfl.data.labels import known_labels

RNG = np.random.default_rng(0)
K = np.arange(60) % 3
WORDS = np.array(["no", "yes", "eh"])[K]
X = RNG.normal(size=(60, 2)).astype(np.float32)
WHO = np.repeat(list("abc"), 20)
COUNTS = RNG.poisson(40, 60)


def made(y: Any, x: Any = X, **given: Any) -> Federation:
    return Federation.from_arrays(x, y, WHO, test=0.0, **given)


@pytest.mark.parametrize(
    ("y", "labels", "classes"),
    [
        (K, None, K),
        (K.astype(">i2"), None, K),
        (torch.tensor(K, dtype=torch.uint8), None, K),
        ([*K], None, K),
        (K[:, None], None, K),
        (pd.Series(K, index=range(7, 67)), None, K),
        (K + 1, ["1", "2", "3"], K),
        (pd.Series(K + 1, dtype="Int64"), ["1", "2", "3"], K),
        (np.where(K == 2, 10**12, K), ["0", "1", str(10**12)], K),
        (np.where(K > 0, 1, -1), ["-1", "1"], (K > 0) * 1),
        (K > 0, ["False", "True"], (K > 0) * 1),
        (pd.Series(K > 0, dtype="boolean"), ["False", "True"], (K > 0) * 1),
        (WORDS, ["eh", "no", "yes"], (K + 1) % 3),
        (WORDS.astype(object), ["eh", "no", "yes"], (K + 1) % 3),
        (np.array([np.int32(k + 1) for k in K], object), ["1", "2", "3"], K),
        (WORDS.astype("S"), ["eh", "no", "yes"], (K + 1) % 3),
        (pd.Series(pd.Categorical(WORDS)), ["eh", "no", "yes"], (K + 1) % 3),
    ],
)
def test_labels_of_any_kind_are_classes(y: Any, labels: list[str] | None, classes: np.ndarray) -> None:
    fed = made(y)
    assert fed.task == "classification"
    assert fed.about.get("labels") == labels
    assert fed.classes == len(set(classes.tolist()))
    assert torch.equal(torch.cat([fed.y[index] for index in fed.train]), torch.as_tensor(classes))
    kept = labels or [str(k) for k in range(3)]
    assert known_labels(y, kept, "y").tolist() == classes.tolist()


@pytest.mark.parametrize(
    ("y", "given", "words"),
    [
        (K * 1.0, {}, r"floats of 3 whole values \(0, 1, 2\): labels or responses\? task='classification' or"),
        (COUNTS, {}, "different whole numbers .* labels or counts"),
        (np.eye(3)[K], {}, r"shape \(60, 3\), .* one-hot rows become labels by .argmax\(1\)"),
        (np.array([1, "1", 2] * 20, object), {}, "int and str, and targets are numbers, or words, all of one type"),
        (np.array([None, "a", "b"] * 20, object), {}, "missing values: drop these rows"),
        (np.array([pd.NA, "a", "b"] * 20, object), {}, "missing values: drop these rows"),
        ([Decimal(1)] * 60, {}, r"Decimal: make them floats by .astype\(float\)"),
        (np.array(["2020-01-01"] * 60, "M8[D]"), {}, "days since a first date"),
        (np.ma.array(K, mask=K == 0), {}, "20 masked values"),
        (WORDS, {"task": "regression"}, "holds no numbers"),
        (K / 2, {"task": "classification"}, "holds 0.5, and labels are whole numbers or words"),
        (K, {"task": "classes"}, "unknown task 'classes'; known: classification, regression"),
    ],
)  # fmt: skip
def test_what_may_be_two_things_is_asked(y: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(y, **given)


def test_what_was_asked_works() -> None:
    assert made(K * 1.0, task="classification").classes == 3
    assert made(K * 1.0, task="regression").task == made(COUNTS, task="regression").task == "regression"
    assert made(COUNTS, task="classification").classes == len(set(COUNTS.tolist()))
    frame = pd.DataFrame({"h": WHO, "c": COUNTS, "x": X[:, 0]})
    with pytest.raises(UserError, match="column 'c' holds .* labels or counts"):
        Federation.from_frame(frame, client="h", y="c", x=["x"])
    assert Federation.from_frame(frame, client="h", y="c", x=["x"], task="regression").task == "regression"


def test_a_label_that_only_test_rows_have_is_one_of_the_labels() -> None:
    y = np.where(np.arange(60) == 7, 3, K)
    assert {Federation.from_arrays(X, y, WHO, test=0.5, seed=seed).classes for seed in range(4)} == {4}
    with pytest.raises(UserError, match="y_test holds 3: labels are whole numbers from 0 to 2"):
        Federation.from_arrays(X, K, WHO, x_test=X[:6], y_test=K[:6] + 1, client_test=WHO[:6])


@pytest.mark.parametrize(
    ("labels", "y", "words"),
    [
        (["1", "2"], [0, 1], "holds '0', which is no label of the federation; known: 1, 2"),
        (["eh", "no", "yes"], ["no", "maybe"], "holds 'maybe', which is no label"),
        (["eh", "no", "yes"], [True, False], "holds 'True', which is no label"),
        (["0", "1", "2"], [0, 3], "labels are whole numbers from 0 to 2"),
        (["0", "1", "2"], [0.5, 1], "holds 0.5"),
    ],
)
def test_labels_that_are_not_known(labels: list[str], y: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        known_labels(y, labels, "y")


def test_further_labels_are_written_as_the_others_or_as_numbers_of_words() -> None:
    assert known_labels([2.0, 1.0], ["1", "2"], "y").tolist() == [1, 0]
    assert known_labels([2, 0], ["eh", "no", "yes"], "y").tolist() == [2, 0]
    assert known_labels([True, False], ["0", "1"], "y").tolist() == [1, 0]


PIXELS = RNG.integers(0, 256, (60, 4, 4))


@pytest.mark.parametrize(
    ("x", "inputs", "kind"),
    [
        (PIXELS.astype(np.uint8), None, torch.uint8),
        (PIXELS, "pixels", torch.uint8),
        (PIXELS / 255, "pixels", torch.uint8),
        (torch.tensor(PIXELS).bfloat16(), "pixels", torch.uint8),
        (PIXELS.astype(np.uint8), "numbers", torch.float32),
        (PIXELS[:, 0].astype(np.uint8), "pixels", torch.uint8),
        (PIXELS[:, 0].astype(np.uint8), "ids", torch.int64),
        (PIXELS[:, 0].astype(">f4"), "ids", torch.int64),
    ],
)
def test_inputs_are_what_is_said(x: Any, inputs: Any, kind: torch.dtype) -> None:
    fed = made(K, x, inputs=inputs)
    batch, again = fed.batch([0]), made(K, PIXELS.reshape(x.shape) if x.ndim == 3 else PIXELS[:, 0], inputs=inputs)
    assert fed.x.dtype == kind
    assert fed.template().x.dtype == batch.x.dtype == (torch.int64 if inputs == "ids" else torch.float32)
    if inputs is not None:
        assert torch.equal(batch.x, again.batch([0]).x)
    assert (fed.mean is not None) == (kind == torch.uint8)


@pytest.mark.parametrize(
    ("x", "given", "words"),
    [
        (PIXELS[:, 0].astype(np.uint8), {}, r"uint8 of shape \(60, 4\): pixels, numbers or ids\?"),
        (PIXELS[:, 0] - 256, {"inputs": "ids"}, "and ids are whole numbers from 0"),
        (PIXELS[:, 0], {"inputs": "ids", "standardise": True}, "ids are never standardised"),
        (PIXELS * 0.9 + 0.5, {"inputs": "pixels"}, "no whole numbers from 0 to 255: round them, or inputs='numbers'"),
        (PIXELS, {"inputs": "words"}, "unknown value of inputs 'words'; known: pixels, numbers, ids"),
        (PIXELS.astype(str), {}, "arrays: x holds .*, not numbers"),
    ],
)
def test_inputs_that_are_not_what_is_said(x: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(K, x, **given)


def test_pictures_that_are_not_standardised_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    made(K, PIXELS)
    assert "arrays: x reaches from 0 to 255, far from unit scale, and is used as it is: inputs='pixels'" in caplog.text
    for x in (PIXELS + 0.5, PIXELS * 257, PIXELS / 255e3):
        caplog.clear()
        made(K, x)
        assert "far from unit scale" in caplog.text
    caplog.clear()
    for x, how in (
        (PIXELS, {"inputs": "numbers"}), (PIXELS, {"inputs": "pixels"}), (X[:, :, None], {}), (PIXELS / 255, {}),
        (PIXELS, {"standardise": True}), (PIXELS, {"standardise": False}),
    ):  # fmt: skip
        made(K, x, **how)
    assert not caplog.text


def test_test_inputs_are_read_as_the_training_inputs() -> None:
    rest = {"y_test": K[:6], "client_test": WHO[:6]}
    raw, scaled = (
        Federation.from_arrays(PIXELS.astype(np.uint8), K, WHO, x_test=x[:6], **rest)
        for x in (PIXELS.astype(np.uint8), PIXELS / 255)
    )
    assert torch.equal(raw.x, scaled.x)
    with pytest.raises(UserError, match="divide them by 255"):
        Federation.from_arrays(PIXELS / 255, K, WHO, x_test=PIXELS[:6].astype(np.uint8), **rest)
