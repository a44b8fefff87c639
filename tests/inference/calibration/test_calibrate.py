"""Fits that are calibrated: by any engine the same, by validation data alone, and what they report is what they do."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from support.accelerator import DEVICE, simulated
from support.calibrated import HOW, made, numbers
from support.federations import blobs, slopes
from support.paths import ROOT
from support.ranks import processes
from support.sites import Sites

from hierfl.errors import UserError
from hierfl.inference import Run, fit
from hierfl.inference.calibration.calibrate import calibration_of_client
from hierfl.inference.calibration.search import PRIOR
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.metrics.calibration import conformal_rank, label_scores
from hierfl.models import FedAvg, PFedVEM
from hierfl.nn.networks.build import architecture
from hierfl.plots.calibration import mean_error


@pytest.fixture(scope="module")
def run() -> Run:
    """On one plate, clients one by one."""
    return fit(*made(), progress=False, **HOW)


def predictions(run: Run, split: str, draws: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every client's log probabilities and labels."""
    federation = run.fitted.federation
    index = federation.indices(split)
    return [
        (run.predict(federation.x[index[j]], name, draws).log(), federation.y[index[j]])
        for j, name in enumerate(run.ids)
        if len(index[j])
    ]


@pytest.mark.parametrize(("kind", "draws"), [("pm", 0), ("pm_draws", 5)])
def test_temperature_is_the_optimum_of_all_validation_predictions(run: Run, kind: str, draws: int) -> None:
    log_probs, y = map(torch.cat, zip(*predictions(run, "validation", draws), strict=True))

    def objective(log_power: float) -> float:
        chosen = (math.exp(log_power) * log_probs).log_softmax(-1)[torch.arange(len(y)), y]
        return float(-chosen.sum()) + PRIOR * (math.exp(log_power) - 1 - log_power)

    optimum = minimize_scalar(objective, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert run.calibration is not None
    assert math.log(run.calibration.temperatures[kind]) == pytest.approx(-optimum.x, abs=1e-6)
    assert abs(optimum.x) > 0.01  # there is something to find
    assert run.calibration.examples == len(y)


def test_threshold_is_the_order_statistic_of_all_validation_scores(run: Run) -> None:
    scores = torch.cat([label_scores(p)[torch.arange(len(y)), y] for p, y in predictions(run, "validation", 5)])
    exact = float(scores.sort().values[conformal_rank(len(scores), 0.2) - 1])
    assert run.calibration is not None
    assert run.calibration.threshold is not None
    assert exact <= run.calibration.threshold <= exact + 1e-6


def test_what_is_reported_is_what_predictions_do(run: Run) -> None:
    """Tempered NLL, coverage and size, from what the run predicts for its own test data."""
    assert run.calibration is not None
    federation, metrics = run.fitted.federation, run.calibration.metrics
    nll: dict[int, list[float]] = {0: [], 5: []}
    coverage, size = [], []
    for j, name in enumerate(run.ids):
        x, y = federation.x[federation.test[j]], federation.y[federation.test[j]]
        for draws, each in nll.items():
            p = run.predict(x, name, draws, tempered=True)
            torch.testing.assert_close(p.sum(-1), torch.ones(len(y), dtype=p.dtype))
            each.append(float(-p[torch.arange(len(y)), y].log().mean()))
        sets = run.prediction_sets(x, name)
        coverage.append(float(sets[torch.arange(len(y)), y].double().mean()))
        size.append(float(sets.sum(-1).double().mean()))
    assert metrics["pm_tempered_nll"] == pytest.approx(np.mean(nll[0]))
    assert metrics["pm_draws_tempered_nll"] == pytest.approx(np.mean(nll[5]))
    assert metrics["set_coverage"] == pytest.approx(np.mean(coverage))
    assert metrics["set_size"] == pytest.approx(np.mean(size))
    np.testing.assert_allclose(run.clients["set_coverage"], coverage)
    np.testing.assert_allclose(run.clients["set_size"], size)
    assert run.clients["n_validation"].tolist() == federation.sizes("validation")
    unheard = [c for c, n in zip(coverage, federation.sizes("validation"), strict=True) if not n]
    assert 0 < len(unheard) < len(coverage)
    assert metrics["set_coverage_unheard"] == pytest.approx(np.mean(unheard))


def test_reliability_at_the_temperature_is_what_is_reported(run: Run) -> None:
    for averaged, kind in ((False, "pm"), (True, "pm_draws")):
        error = mean_error(run.reliability(averaged, tempered=True))
        assert error == pytest.approx(numbers(run)[f"{kind}_tempered_ece"], rel=1e-9)
        assert error != pytest.approx(mean_error(run.reliability(averaged)), rel=1e-3)


def test_nothing_is_chosen_by_test_data(run: Run) -> None:
    method, federation = made()
    y = federation.y.clone()
    for index in federation.test:
        y[index] = (y[index] + 1) % 3
    other = fit(method, dataclasses.replace(federation, y=y), progress=False, **HOW)
    assert run.calibration is not None
    assert other.calibration is not None
    assert other.calibration.powers == run.calibration.powers
    assert other.calibration.threshold == run.calibration.threshold
    assert other.calibration.metrics != run.calibration.metrics


def test_calibration_changes_nothing_else(run: Run) -> None:
    plain = fit(*made(), progress=False, **{**HOW, "calibrate": "none", "conformal": 0.0})
    assert plain.calibration is None
    assert "set_coverage" not in plain.clients
    for name, value in run.personal.items():
        assert torch.equal(plain.personal[name], value)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in result.evaluations] for result in (run, plain)]
    assert json.dumps(rows[0]) == json.dumps(rows[1])
    with pytest.raises(UserError, match="not calibrated"):
        plain.prediction_sets(plain.fitted.federation.x[:2], plain.ids[0])
    with pytest.raises(UserError, match="not calibrated"):
        plain.predict(plain.fitted.federation.x[:2], plain.ids[0], tempered=True)


def close(first: Mapping[str, Any], other: Mapping[str, Any], but: str = "") -> None:
    """The same numbers, up to rounding."""
    assert first.keys() == other.keys()
    for name in first.keys() - {"clients", but}:
        assert first[name] == pytest.approx(other[name], rel=1e-8, abs=1e-8), name
    for name in first["clients"].keys() & other["clients"].keys():
        np.testing.assert_allclose(first["clients"][name], other["clients"][name], rtol=1e-8)


def test_one_plate_for_all_gives_the_same(run: Run) -> None:
    close(numbers(fit(*made(), progress=False, **{**HOW, "chunk": 5})), numbers(run))


@pytest.mark.slow
@pytest.mark.cpu(4, "each operation of a fit is simulated")
def test_another_device_gives_the_same(run: Run) -> None:
    federation = run.fitted.federation
    x = federation.x[federation.test[0]].numpy()
    with simulated():
        other = fit(*made(), device=DEVICE, progress=False, **HOW)
        close(numbers(other), numbers(run))
        assert other.prediction_sets(x, other.ids[0]).cpu().tolist() == run.prediction_sets(x, run.ids[0]).tolist()
        p = other.predict(x, other.ids[0], 5, tempered=True).cpu().numpy()
    np.testing.assert_allclose(p, run.predict(x, run.ids[0], 5, tempered=True), rtol=1e-8)


@pytest.mark.slow
def test_ranks_give_the_same(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    started = processes(2, str(ROOT / "tests" / "support" / "calibrated.py"), str(path))
    words = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], words[0][-2000:]
    close(json.loads(path.read_text()), numbers(run))


def test_sites_give_the_same_and_keep_what_they_need(run: Run, tmp_path: Path) -> None:
    """What they answer are sums; in the end every site has temperature and threshold, and knows how it does itself."""
    method, federation = made()
    sites = Sites(method, federation, tmp_path, **HOW)
    done = sites.fit()
    assert done.calibration is not None
    assert not done.calibration.clients
    close(numbers(done), numbers(run))
    for name in sites.own:
        sites.restart(name)
        site = sites.sites[name]
        own = calibration_of_client(site.fitted(), site.options, site.calibrated, random=True)
        assert own is not None
        assert own.temperatures == pytest.approx(done.calibration.temperatures)
        j = run.ids.index(name)
        assert own.clients["set_coverage"][0] == pytest.approx(run.clients["set_coverage"][j])


def test_a_site_answers_no_other_question(tmp_path: Path) -> None:
    sites = Sites(*made(), tmp_path, **{**HOW, "calibrate": "none"})
    asked: list[dict[str, Any]] = []

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        name, request = next(iter(requests.items()))
        head, tensors = decode(request)
        if head["kind"] == "calibration":
            question = head["question"]
            for changed in (
                None, {}, [], {**question, "about": "temperature"}, {**question, "draws": [7]},
                {**question, "low": -1.0}, {**question, "low": True}, {**question, "powers": [0.0]},
                {**question, "threshold": 0.5} if question["threshold"] is None else {**question, "threshold": None},
            ):  # fmt: skip
                answer, nothing = decode(sites.sites[name].answer(encode({**head, "question": changed}, tensors)))
                assert "does not need" in answer["error"]
                assert nothing == {}
            asked.append(question)
        return sites.ask(requests)

    sites.fit(ask)
    assert [question["about"] for question in asked] == ["scores", "scores", "test"]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda name, value: value * torch.nan, marks=pytest.mark.slow),
        pytest.param(lambda name, value: -value, marks=pytest.mark.slow),
        lambda name, value: value + 0.5 if name.endswith(("|terms", "|counts", "examples")) else value,
        None,
    ],
)
def test_a_sites_answer_that_cannot_be_stops_the_calibration_which_goes_on(
    spoil: Any, run: Run, tmp_path: Path
) -> None:
    """A sum over some of the sites would be another objective: it waits for all of them."""
    sites = Sites(*made(), tmp_path, **HOW)

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        if decode(next(iter(requests.values())))[0]["kind"] == "calibration":
            head, tensors = decode(answers.pop("place-01"))
            if spoil is not None:
                answers["place-01"] = encode(head, {k: spoil(k, v) for k, v in tensors.items()})
        return answers

    with pytest.raises(UserError, match=r"4 of 5 sites have answered after round 3.*--resume"):
        sites.fit(ask, folder=tmp_path / "server")
    close(numbers(sites.fit(folder=tmp_path / "server", resume=True)), numbers(run))


def test_resumed_it_is_the_same_and_with_other_options_another_fit(run: Run, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def observe(rows: list[dict[str, Any]]) -> None:
        if rows[-1]["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        fit(*made(), folder=tmp_path, progress=False, observe=observe, **HOW)
    for changed in ({"calibrate": "none"}, {"conformal": 0.1}):
        with pytest.raises(UserError, match=f"different {next(iter(changed))}"):
            fit(*made(), folder=tmp_path, resume=True, progress=False, **{**HOW, **changed})
    again = fit(*made(), folder=tmp_path, resume=True, progress=False, **HOW)
    assert numbers(again) == numbers(run)
    assert numbers(fit(*made(), folder=tmp_path, resume=True, progress=False, **HOW)) == numbers(run)


def test_a_checkpoint_from_before_there_were_such_options_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {**HOW, "calibrate": "none", "conformal": 0.0}
    with monkeypatch.context() as before:
        before.setattr("hierfl.inference.options.NEWER", {})
        fit(*made(), folder=tmp_path, progress=False, **plain)
    fit(*made(), folder=tmp_path, resume=True, progress=False, **plain)
    with pytest.raises(UserError, match="different conformal"):
        fit(*made(), folder=tmp_path, resume=True, progress=False, **{**plain, "conformal": 0.1})


def test_a_point_guide_has_one_temperature() -> None:
    federation = blobs([90, 66, 44], validation=0.3)
    how = {**HOW, "conformal": 0.2}
    calibration = fit(FedAvg(architecture("mlp:5", federation)), federation, progress=False, **how).calibration
    assert calibration is not None
    assert calibration.temperatures.keys() == {"pm"}
    assert calibration.draws == 0
    assert "set_coverage_unheard" not in calibration.metrics


def test_too_few_validation_examples_leave_every_label(run: Run) -> None:
    refit = fit(*made(), progress=False, **{**HOW, "conformal": 0.001})
    assert refit.calibration is not None
    assert refit.calibration.threshold == 1
    assert refit.clients["set_coverage"].tolist() == [1.0] * 5
    assert refit.clients["set_size"].tolist() == [3.0] * 5


def test_what_cannot_be_calibrated_is_refused_before_the_first_round() -> None:
    federation = blobs([20, 20])
    net = architecture("mlp:5", federation)
    for how in ({"calibrate": "temperature"}, {"conformal": 0.1}):
        with pytest.raises(UserError, match="by validation data, and there are none"):
            fit(PFedVEM(net), federation, rounds=1, **how)
    lines = slopes([20, 20])
    with pytest.raises(UserError, match="of class probabilities, and this is a regression"):
        fit(PFedVEM(architecture("linear", lines)), lines, rounds=1, conformal=0.1)
    for how in ({"calibrate": "isotonic"}, {"conformal": 1.0}, {"conformal": -0.1}, {"conformal": "a tenth"}):
        with pytest.raises(UserError, match="calibrate|conformal"):
            fit(PFedVEM(net), federation, rounds=1, **how)
