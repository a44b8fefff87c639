"""Lines of advice are true where the truth is known: a fit still rises, is level, or is too sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.federations import blobs

from hierfl import Federation
from hierfl.inference import Run, fit
from hierfl.inference.calibration.temperature_gain import POWERS, gain_of
from hierfl.inference.run.advice import advice
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


@pytest.fixture(scope="module")
def federation() -> Federation:
    return blobs([60] * 8, validation=0.4, test=40, features=6, seed=3)


def run(federation: Federation, rounds: int, lr: float, **options: Any) -> Run:
    method = FedAvg(architecture("linear", federation), epochs=1, lr=lr)
    return fit(method, federation, rounds=rounds, progress=False, seed=1, **options)


def test_a_fit_that_still_rises_is_better_with_the_rounds_that_are_advised(federation: Federation) -> None:
    short, long = run(federation, 14, 0.001), run(federation, 28, 0.001)
    lines = [line for line in advice(short) if "--rounds" in line]
    assert lines == [lines[0]]
    assert lines[0].startswith("accuracy on validation data was still rising, by ")
    assert lines[0].endswith("over rounds 8 to 14: try rounds=28 (--rounds)")
    assert long.last()["pm_accuracy"] > short.last()["pm_accuracy"] + 0.02  # as test data say, which it never saw


def test_a_level_fit_has_no_such_line_and_would_not_be_better(federation: Federation) -> None:
    short, long = run(federation, 15, 0.1), run(federation, 30, 0.1)
    assert [line for line in advice(short) if "--rounds" in line] == []
    assert long.last()["pm_accuracy"] == pytest.approx(short.last()["pm_accuracy"], abs=0.02)


def test_nothing_is_advised_by_test_data_alone() -> None:
    federation = blobs([60] * 4, validation=0.0, test=40, features=6, seed=3)
    assert advice(run(federation, 14, 0.001)) == []


def test_a_temperature_is_advised_where_probabilities_are_too_sure() -> None:
    federation = blobs([60] * 16, validation=0.4, test=40, features=6, seed=3)
    sure, with_it = run(federation, 8, 3.0), run(federation, 8, 3.0, calibrate="temperature")
    (line,) = advice(sure)
    assert line.startswith(
        "calibrate=temperature (--calibrate) would lower NLL from 0.268 to 0.081 (standard error of the "
    )
    assert line.endswith("on validation data of clients that it was not chosen on, with T 4.48 and 4.48")
    assert advice(with_it) == []
    tested = {**with_it.last(), **with_it.calibration.numbers}  # type: ignore[union-attr]
    assert tested["pm_tempered_nll"] < 0.5 * tested["pm_nll"]  # as test data say, which it never saw


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_gain_is_there_where_the_truth_is_another_temperature(power: float) -> None:
    """Labels of probabilities p^power / sum, for predictions p: right with power 1, and too sure below."""
    rng, advised, gains = np.random.default_rng(1), 0, []
    for _ in range(60):
        n = rng.integers(10, 40, 12)
        nll = np.zeros((12, len(POWERS)))
        for j, many in enumerate(n):
            logits = 2.0 * rng.normal(size=(many, 3))
            truth = np.exp(power * logits)
            truth /= truth.sum(1, keepdims=True)
            y = (rng.random((many, 1)) > truth.cumsum(1)).sum(1)
            scaled = POWERS[:, None, None] * logits
            own = np.log(np.exp(scaled).sum(-1)) - np.take_along_axis(scaled, y[None, :, None], 2)[..., 0]
            nll[j] = own.sum(1)
        gain = gain_of(n.astype(float), nll)
        assert gain is not None
        gains.append(gain.before - gain.after)
        advised += gains[-1] > 2 * gain.error and gains[-1] > 0.03 * gain.before
    assert advised <= 2 if power == 1.0 else advised >= 45
    assert np.mean(gains) < 0.005 if power == 1.0 else np.mean(gains) > 0.05
    assert gain_of(n[:5].astype(float), nll[:5]) is None
