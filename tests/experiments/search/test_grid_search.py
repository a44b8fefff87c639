"""`hierfl search`: settings are chosen on validation data, and searches go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Call, command

from hierfl import Federation, UserError
from hierfl.data.datasets import registry
from hierfl.experiments.methods import shipped_settings
from hierfl.inference import fit
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


def test_settings_are_chosen_on_validation_data_and_searches_go_on(hierfl: Call, tmp_path: Path) -> None:
    out = tmp_path / "search.json"
    arguments = ["search", "fedavg", "--rounds", "2", "--seeds", "2", "--out", str(out)]
    command(*arguments, "lr=0.001,0.05")
    first = json.loads(out.read_text())
    assert [c["settings"]["lr"] for c in first["cells"]] == [0.05, 0.001]  # best first
    assert first["cells"][0]["pm_nll"] < first["cells"][1]["pm_nll"]
    assert first["cells"][0]["diverged_local_steps"] == 0
    kept = first["cells"][0] | {"pm_nll": 0.123}
    del kept["all_settings"]["server_lr"]  # as if that setting were newer than the search
    kept["settings"] = {"lr": "0.05"}  # as in files of earlier versions
    out.write_text(json.dumps(first | {"cells": [kept, first["cells"][1]]}))
    command(*arguments, "lr=0.05,0.02")
    command(*arguments, "lr=5e-2")  # the same
    cells = {c["settings"]["lr"]: c for c in json.loads(out.read_text())["cells"]}
    assert cells.keys() == {0.05, 0.001, 0.02}
    assert cells[0.05]["pm_nll"] == 0.123  # not run again
    command(*arguments, "lr=0.05,0.02", "--by", "pm_accuracy,gm_accuracy")  # judged anew
    again = json.loads(out.read_text())
    values = [c["pm_accuracy"] + c["gm_accuracy"] for c in again["cells"]]
    assert again["by"] == ["pm_accuracy", "gm_accuracy"]
    assert values == sorted(values, reverse=True)
    for words, options in (
        ("one direction", ["lr=0.05", "--by", "pm_accuracy,gm_nll"]),
        ("fedavg has no pm_rmse", ["lr=0.05", "--by", "pm_rmse"]),
        ("settle must be at least 1", ["lr=0.05", "--settle", "0"]),
        ("only 2 evaluations; --settle asks for 5", ["lr=0.04", "--settle", "5", "--out", str(tmp_path / "new.json")]),
        ("lr is set twice", ["lr=0.05", "lr=0.02"]),
        ("lr must be above 0", ["lr=0.03,-1"]),
        ("its network is None, not 'mlp:5'", ["lr=0.05", "--network", "mlp:5"]),
        ("is a folder", ["lr=0.05", "--out", str(tmp_path)]),
    ):
        with pytest.raises(UserError, match=words):
            command(*arguments, *options)
    cells = {c["settings"]["lr"]: c for c in json.loads(out.read_text())["cells"]}
    assert cells.keys() == {0.05, 0.001, 0.02}  # nothing is run of a grid that cannot be
    smaller = [
        "search",
        "fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--network",
        "mlp:5",
        "--clients",
        "4",
        "--split",
        "iid",
    ]
    other = tmp_path / "other" / "search.json"
    command(*smaller, "--out", str(other), "lr=0.05")
    record = json.loads(other.read_text())
    assert (record["network"], record["clients"], record["split"]) == ("mlp:5", 4, "iid")
    with pytest.raises(UserError, match="fedavg has no pm_rmse"):
        command(*smaller, "--out", str(other), "lr=0.02", "--by", "pm_rmse")
    assert len(json.loads(other.read_text())["cells"]) == 2  # what was run is kept
    command(*smaller, "--out", str(other), "lr=0.02", "--against", "lr")
    command(*smaller, "--out", str(tmp_path / "steep.json"), "lr=1e30")
    assert json.loads((tmp_path / "steep.json").read_text())["cells"][0]["diverged_local_steps"] == 4
    assert (tmp_path / "other" / "search.png").stat().st_size > 5000
    with pytest.raises(UserError, match="--against takes a setting of fedavg that is a number, not 'local_norm'"):
        command(*smaller, "--out", str(other), "lr=0.01", "--against", "local_norm")
    for text, words in (
        ("{", "damaged, or no json"),
        ("[]", "holds no table"),
        ('{"cells": [1]}', "holds no cells"),
        ("\xff", "damaged, or no json"),
    ):
        out.write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=words):
            command(*arguments, "lr=0.05")
        assert out.read_bytes() == text.encode("latin-1")


def test_a_search_averages_over_the_last_evaluations_and_never_sees_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.inference.engines import plate

    def only_validation(fitted: object, split: str, *rest: object) -> object:
        assert split == "validation"
        return evaluate(fitted, split, *rest)

    evaluate = plate.evaluate_personal
    monkeypatch.setattr(plate, "evaluate_personal", only_validation)
    values = []
    for settle in (1, 2):
        out = tmp_path / f"{settle}.json"
        command(
            "search", "fedavg", "--rounds", "2", "--seeds", "1", "--settle", str(settle), "--out", str(out), "lr=0.05"
        )
        values.append(json.loads(out.read_text())["cells"][0]["pm_nll"])
    federation = Federation.from_pool(registry.load("digits", tmp_path), 20, "label-skew:5", seed=0)
    settings = {**shipped_settings("fedavg", "digits")[0], "lr": 0.05}
    monkeypatch.undo()
    run = fit(FedAvg(architecture("mlp:64", federation), **settings), federation, rounds=2, progress=False)
    nll = [row["pm_nll"] for row in run.evaluations if row["split"] == "validation"]
    assert values == pytest.approx([nll[1], sum(nll) / 2])
