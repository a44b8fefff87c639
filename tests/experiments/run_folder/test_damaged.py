"""Our own files, damaged: one line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import SMALL, lines

from hierfl.experiments.run_folder.config_file import read_config


def spoilt(value: object, luck: random.Random) -> object:
    """Something else than a value of json."""
    others = [None, True, -1, 0, 3, 10**30, 0.5, float("nan"), -1e400, "x", "", [], [1], {}, {"a": 1}, "\udcff"]
    return luck.choice([o for o in others if o != value or type(o) is not type(value)])


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Where in a json anything stands."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [p for key, member in inner for p in places(member, (*path, key))]


@pytest.mark.parametrize("name", ["checkpoint/checkpoint.json", "summary.json"])
@pytest.mark.parametrize("forged", [False, True])
def test_our_own_damaged_json_is_one_line(name: str, forged: bool, hierfl: Call, tmp_path: Path) -> None:
    """Damage anywhere is noticed; what a forger has made fit its checksum may be taken, and is never a traceback."""
    from hierfl.inference.run import checkpoint

    luck = random.Random(7)
    assert hierfl("run", "pfedvem", *SMALL, "--out", "o")[0] == 0
    whole = (tmp_path / "o" / name).read_text()
    if forged and name == "summary.json":
        pytest.skip("it has no checksum")
    spots = places(json.loads(whole))
    command = (
        ("run", "--resume", "o", "--quiet") if "checkpoint" in name else ("report", "o", "--no-features", "--quiet")
    )
    noticed = 0
    for spot in luck.sample(spots, 25):
        record = json.loads(whole)
        *outer, last = spot
        inner = record
        for key in outer:
            inner = inner[key]
        if luck.random() < 0.3:
            del inner[last]
        else:
            inner[last] = spoilt(inner[last], luck)
        if forged and isinstance(record, dict):
            record["checksum"] = checkpoint._checksum(record)
        (tmp_path / "o" / name).write_text(json.dumps(record))
        code, _, err = hierfl(*command)
        assert (code, len(lines(err))) in ((2, 1), (0, 0)), (spot, err)
        noticed += code == 2
    assert noticed == 25 if "checkpoint" in name and not forged else noticed > 0


def test_a_state_of_another_type_is_refused(hierfl: Call, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from hierfl.inference.run import checkpoint

    assert hierfl("run", "pfedvem", *SMALL, "--out", "o")[0] == 0
    place = tmp_path / "o/checkpoint"
    state = next(place.glob("*.safetensors"))
    save_file({k: v.double() if v.dtype == torch.float32 else v for k, v in load_file(state).items()}, state)
    record = json.loads((place / "checkpoint.json").read_text())
    record["digest"] = checkpoint._digest(state)
    record["checksum"] = checkpoint._checksum(record)
    (place / "checkpoint.json").write_text(json.dumps(record))
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
def test_a_damaged_configuration_is_one_line(old: str, new: str, words: str, hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 0
    config = tmp_path / "o/config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, len(lines(err))) == (2, 1), err
    assert words in err


def test_a_damaged_posterior_is_one_line(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "pfedvem", *SMALL, "--out", "o")[0] == 0
    path = tmp_path / "o/posterior.nc"
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        code, _, err = hierfl("report", "o", "--no-features", "--quiet")
        assert (code, len(lines(err))) == (2, 1), err
        assert "posterior.nc is damaged, or no posterior" in err
    shutil.copy(tmp_path / "o/summary.json", path)
    assert hierfl("report", "o", "--no-features", "--quiet")[0] == 2


def test_older_configurations_are_read(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 0
    config = tmp_path / "o/config.toml"
    newer = ("ood", "absent_clients", "observed_data", "federation")
    kept = [line for line in config.read_text().splitlines() if not line.startswith(newer)]
    config.write_text("\n".join(kept) + "\n")
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert read_config(tmp_path / "o").run.observed_data is True
