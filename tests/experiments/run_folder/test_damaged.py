"""Our own files, damaged: one line."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import Call
from support.run_folders import Finished, lines

from hierfl import UserError
from hierfl.experiments.report.run_page import write_run_page
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.experiments.run_folder.load import load_run
from hierfl.experiments.run_folder.resume import resume
from hierfl.inference.run import checkpoint
from hierfl.models.mixed_effects.method import MixedEffects


def spoilt(value: object, luck: random.Random) -> object:
    """Something else than a value of json."""
    others = [None, True, -1, 0, 3, 10**30, 0.5, float("nan"), -1e400, "x", "", [], [1], {}, {"a": 1}, "\udcff"]
    return luck.choice([o for o in others if o != value or type(o) is not type(value)])


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Where in a json anything stands."""
    paths = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return paths + [p for key, member in inner for p in places(member, (*path, key))]


def damaged(whole: object, luck: random.Random) -> tuple[object, object]:
    """A copy of a json with one place left out or spoilt, and the place."""
    spot = luck.choice(places(whole))
    record = copy.deepcopy(whole)
    *outer, last = spot
    inner: Any = record
    for key in outer:
        inner = inner[key]
    if luck.random() < 0.3:
        del inner[last]
    else:
        inner[last] = spoilt(inner[last], luck)
    return spot, record


CHECKPOINT, SUMMARY = "checkpoint/checkpoint.json", "summary.json"
RESUME, REPORT = ("run", "--resume", "o", "--quiet"), ("report", "o", "--no-features", "--quiet")
#: what reads a file, without the command line
READERS = {CHECKPOINT: lambda folder: resume(folder, progress=False), SUMMARY: write_run_page}


@pytest.mark.parametrize(
    ("name", "forged", "times"),
    [(CHECKPOINT, False, 25), (CHECKPOINT, True, 5), (SUMMARY, False, 25)],
)
def test_our_own_damaged_json_is_noticed(name: str, forged: bool, times: int, finished: Finished, hierfl: Call) -> None:
    """Damage anywhere; what a forger has made fit its checksum may be taken. What is noticed is one line."""
    folder = finished("pfedvem", "o")
    (folder / "posterior.nc").unlink()  # a page is written sooner without
    whole, luck, messages = json.loads((folder / name).read_text()), random.Random(7), list[str]()
    for _ in range(times):
        _, record = damaged(whole, luck)
        if forged and isinstance(record, dict):
            record["checksum"] = checkpoint._checksum(record)
        (folder / name).write_text(json.dumps(record))
        try:
            READERS[name](folder)
        except UserError as error:
            messages.append(str(error))
    assert [len(lines(text)) for text in messages] == [1] * len(messages)
    assert len(messages) == times if name == CHECKPOINT and not forged else messages
    (folder / name).write_text("[]")
    code, _, err = hierfl(*(RESUME if name == CHECKPOINT else REPORT))
    assert (code, len(lines(err))) == (2, 1), err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "forged"), [(CHECKPOINT, False), (CHECKPOINT, True), (SUMMARY, False)])
def test_our_own_damaged_json_is_one_line(
    name: str, forged: bool, finished: Finished, hierfl: Call, tmp_path: Path
) -> None:
    """By the whole command: damage is never a traceback."""
    finished("pfedvem", "o")
    whole, luck, noticed = json.loads((tmp_path / "o" / name).read_text()), random.Random(8), 0
    for _ in range(25):
        spot, record = damaged(whole, luck)
        if forged and isinstance(record, dict):
            record["checksum"] = checkpoint._checksum(record)
        (tmp_path / "o" / name).write_text(json.dumps(record))
        code, _, err = hierfl(*(RESUME if name == CHECKPOINT else REPORT))
        assert (code, len(lines(err))) in ((2, 1), (0, 0)), (spot, err)
        noticed += code == 2
    assert noticed == 25 if name == CHECKPOINT and not forged else noticed > 0


def test_a_state_of_another_type_is_refused(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    finished("pfedvem", "o")
    folder = tmp_path / "o/checkpoint"
    state = next(folder.glob("*.safetensors"))
    save_file({k: v.double() if v.dtype == torch.float32 else v for k, v in load_file(state).items()}, state)
    record = json.loads((folder / "checkpoint.json").read_text())
    record["digest"] = checkpoint._digest(state)
    record["checksum"] = checkpoint._checksum(record)
    (folder / "checkpoint.json").write_text(json.dumps(record))
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, len(lines(err))) == (2, 1), err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 0", "seed = -1", "run.seed is -1"),
        ('device = "cpu"', 'device = "hpu"', "device 'hpu' is not there"),
        ("draws = 20", "draws = 100000000000000000000", "draws"),
        ("rounds = 2", "rounds = true", "run.rounds is True"),
        ("observed_data = true", 'observed_data = "no"', "run.observed_data is 'no'"),
        ("[settings]", "[settings]\nx = [1]", "settings.x is [1]"),
        ("validation_fraction = 0.1", "validation_fraction = nan", "run.validation_fraction is nan"),
    ],
)
def test_a_damaged_configuration_is_one_line(
    old: str, new: str, words: str, hierfl: Call, tmp_path: Path, finished: Finished
) -> None:
    finished("fedavg", "o")
    config = tmp_path / "o/config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, len(lines(err))) == (2, 1), err
    assert words in err


def test_a_damaged_posterior_is_one_line(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("pfedvem", "o")
    path = tmp_path / "o/posterior.nc"
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        code, _, err = hierfl("report", "o", "--no-features", "--quiet")
        assert (code, len(lines(err))) == (2, 1), err
        assert "posterior.nc is damaged, or no posterior" in err
    shutil.copy(tmp_path / "o/summary.json", path)
    assert hierfl("report", "o", "--no-features", "--quiet")[0] == 2


def test_older_configurations_are_read(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("fedavg", "o")
    config = tmp_path / "o/config.toml"
    newer = ("ood", "absent_clients", "observed_data", "federation")
    kept = [line for line in config.read_text().splitlines() if not line.startswith(newer)]
    config.write_text("\n".join(kept) + "\n")
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert read_config(tmp_path / "o").run.observed_data is True


def test_parts_of_two_runs_are_no_run(finished: Finished, tmp_path: Path) -> None:
    """The folder of one run with the model of another predicted, and said nothing."""
    folder, other = finished("pfedvem", tmp_path / "one"), finished("pfedvem", tmp_path / "other", "--seed", 1)
    with pytest.raises(
        UserError, match=r"MixedEffects is a method of a table, and the model in model/ is of a network"
    ):
        load_run(folder, method=MixedEffects)
    config = folder / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("seed = 0", "seed = 7"))
    with pytest.raises(
        UserError, match="config.toml has the seed 7, and the model in model/ 0: one of them is of another"
    ):
        load_run(folder)
    config.write_text(text.replace("sigma_0 = 1.0", "sigma_0 = 0.5"))
    with pytest.raises(UserError, match=r"config.toml has the setting sigma_0 0.5, and the model in model/ 1.0: one"):
        load_run(folder)
    config.write_text(text)
    load_run(folder)
    shutil.rmtree(folder / "model")
    shutil.copytree(other / "model", folder / "model")
    with pytest.raises(
        UserError, match="config.toml has the data .*, and the model in model/ .*: one of them is of another"
    ):
        load_run(folder)


def test_a_folder_that_is_no_run_is_not_taken_for_a_site(finished: Finished, tmp_path: Path, hierfl: Call) -> None:
    folder = finished("pfedvem", tmp_path / "run")
    (folder / "config.toml").unlink()
    (tmp_path / "empty").mkdir()
    assert (
        "has model/, as a run has, and no config.toml: copy the whole"
        in hierfl("predict", folder, "--data", "x.csv")[2]
    )
    assert "is no folder of a finished run" in hierfl("predict", tmp_path / "empty", "--data", "x.csv")[2]
