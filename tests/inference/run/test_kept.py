"""A run that is read again predicts as it did, to the bit, and holds none of the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs, costs
from support.methods import network_for
from support.representatives import over_methods
from torch import Tensor, nn

from hierfl import Federation, UserError
from hierfl.inference import Method, Run
from hierfl.inference.run import kept
from hierfl.inference.run.fit import fit
from hierfl.models import FedAvg, PFedEB, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks import written
from hierfl.nn.networks.build import architecture

HOW: dict[str, Any] = {"rounds": 1, "draws": 3, "progress": False, "dtype": torch.float64}


def kept_run(run: Run, folder: Path, cls: type[Method], given: Architecture | None = None) -> Run:
    """The run, written and read, of a method of this class."""
    record, tensors = written.written(run.fitted.method.given_network)
    kept.write(folder, run, {"network": record}, tensors)
    state, about = kept.read(folder)
    network = written.read(about["network"], kept.under(state, "method/"), given)
    method = cls(network, **vars(run.fitted.method.settings))
    return kept.run_of(method, state, about, kept.federation_of(state, about), folder)


def answers(run: Run, x: Tensor, given: tuple[Tensor, Tensor]) -> list[Any]:
    """What a run says of inputs, or why it says nothing."""
    asked = [
        lambda: run.predict(x, run.ids[0]), lambda: run.predict(x, run.ids[-1], draws=3),
        lambda: run.predict_new_client(x, draws=3), lambda: run.predict_new_client(x, draws=3, given=given),
    ]  # fmt: skip
    results: list[Any] = []
    for ask in asked:
        try:
            results.append(ask())
        except UserError as error:
            results.append(str(error))
    return results


def same(first: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(first, other, strict=True))


@over_methods([case for case in METHODS if not case[0].conditions])
def test_a_run_that_is_read_predicts_as_it_did(case: tuple[type[Method], dict[str, Any]], tmp_path: Path) -> None:
    cls, settings = case
    fed = blobs([9, 7, 4, 6], test=2)
    run = fit(cls(network_for(cls, fed), **{**FEW_STEPS.get(cls, {}), **settings}), fed, **HOW)
    back = kept_run(run, tmp_path, cls)
    x, given = fed.x[:5], (fed.x[:6], fed.y[:6])
    before = answers(run, x, given)
    assert any(isinstance(answer, Tensor) for answer in before)
    assert same(before, answers(back, x, given))
    assert back.metrics.equals(run.metrics)
    assert back.clients.equals(run.clients)
    assert back.history.equals(run.history)
    assert back.participation.equals(run.participation)
    assert back.options.dtype is torch.float64


def test_a_regression_s_units_and_scales_are_kept(tmp_path: Path) -> None:
    fed = costs([9, 7, 5])
    run = fit(PFedVEM(architecture("linear", fed)), fed, **HOW)
    back = kept_run(run, tmp_path, PFedVEM)
    x = fed.x[:5]
    assert same(answers(run, x, (fed.x[:4], fed.y[:4])), answers(back, x, (fed.x[:4], fed.y[:4])))
    assert back.predict(x, "h0")[:, 0].mean() > 1000
    assert back.coverage == run.coverage


def test_calibration_and_chains_at_the_end_are_kept(tmp_path: Path) -> None:
    fed = blobs([30, 30, 30], validation=0.3)
    how = {**HOW, "calibrate": "temperature", "conformal": 0.2}
    run = fit(PFedVEM(network_for(PFedVEM, fed)), fed, **how)
    back = kept_run(run, tmp_path, PFedVEM)
    x, client = fed.x[:5], run.ids[0]
    assert torch.equal(run.predict(x, client, tempered=True), back.predict(x, client, tempered=True))
    assert torch.equal(run.prediction_sets(x, client), back.prediction_sets(x, client))
    assert back.best() == run.best()


def test_layers_constants_and_frozen_weights_are_read_from_a_record() -> None:
    with torch.random.fork_rng():
        module = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(2, 2), nn.Sequential(nn.ReLU(), nn.Flatten())
        )
    module[0].weight.requires_grad_(False)
    network = Architecture(Network(module, event=3), LinearHead(32, 3))
    record, constants = written.written(network)
    again = written.read(json.loads(json.dumps(record)), constants)
    assert repr(again.base.module) == repr(module)
    assert torch.equal(again.base.whole.constants["0.weight"], module[0].weight)
    assert again.base.names == network.base.names
    assert again.base.event == 3


class Doubled(nn.Module):
    """No layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


def test_a_module_of_one_s_own_is_handed_over_and_compared(tmp_path: Path) -> None:
    fed = blobs([9, 7])
    with torch.random.fork_rng():
        network, again, other = (
            Architecture(Network(module), LinearHead(5, 3)) for module in (Doubled(), Doubled(), nn.Linear(4, 5))
        )
    run = fit(FedAvg(network), fed, **HOW)
    with pytest.raises(UserError, match=r"Doubled of .*test_kept.py \(sha256 .*network=Architecture"):
        kept_run(run, tmp_path, FedAvg)
    back = kept_run(run, tmp_path, FedAvg, given=again)
    assert torch.equal(run.predict(fed.x[:3], run.ids[0]), back.predict(fed.x[:3], run.ids[0]))
    with pytest.raises(UserError, match="has other values than network 'base' of the run"):
        kept_run(run, tmp_path, FedAvg, given=other)


@pytest.mark.parametrize("text", ["__import__('os')", "Linear(4, open('x'))", "init()", "Linear", "Linear(4, 5"])
def test_a_record_evaluates_nothing(text: str) -> None:
    with pytest.raises(UserError, match="no layer"):
        written._made(text)


def test_what_needs_rows_says_so_in_one_line(tmp_path: Path) -> None:
    fed = blobs([9, 7])
    back = kept_run(fit(PFedEB(network_for(PFedEB, fed)), fed, **HOW), tmp_path, PFedEB)
    for ask in (back.entropies, lambda: back.fitted.federation.batch([0])):
        with pytest.raises(UserError, match=r"needs the rows that were fitted.*load_run\(folder, rows=True\)"):
            ask()
    assert back.fitted.federation.sizes() == fed.sizes()


def test_no_row_is_in_the_files(tmp_path: Path) -> None:
    fed = Federation.from_arrays(*_marked(), test=0.0)
    run = fit(PFedVEM(network_for(PFedVEM, fed)), fed, rounds=0, progress=False, splits=("train",))
    kept_run(run, tmp_path, PFedVEM)
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for row in fed.x[1:-1]:
        assert row.numpy().tobytes() not in data
        assert row.double().numpy().tobytes() not in data
        assert repr(float(row[1])).encode() not in data


def _marked() -> tuple[Tensor, Tensor, list[str]]:
    """Inputs whose every number is known again; the least and the largest are of the first and last row."""
    x = torch.linspace(-1, 1, 48).pow(3).view(12, 4)
    return x, torch.arange(12) % 3, ["a", "b"] * 6


def test_damage_is_one_line(tmp_path: Path) -> None:
    fed = blobs([9, 7])
    kept_run(fit(FedAvg(network_for(FedAvg, fed)), fed, **HOW), tmp_path, FedAvg)
    state = next(tmp_path.glob("*.safetensors"))
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="does not match"):
        kept.read(tmp_path)
