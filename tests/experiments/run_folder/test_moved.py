"""Run folders that were moved, and paths as their owner says them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import arrays, lines

from hierfl.errors import UserError
from hierfl.files import user_path


def test_a_moved_folder_goes_on_with_moved_data(hierfl: Call, tmp_path: Path) -> None:
    arrays(tmp_path / "here.npz")
    common = ("pfedvem", "--data", "here.npz", "--split", "natural", "--network", "mlp:4", "--quiet", "--set",
              "head_epochs=2", "--set", "base_epochs=1")  # fmt: skip
    assert hierfl("run", *common, "--rounds", 3, "--out", "whole")[0] == 0
    assert hierfl("run", *common, "--rounds", 2, "--out", "a")[0] == 0
    config = tmp_path / "a/config.toml"  # as if it had been stopped after two rounds of three
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a").rename(tmp_path / "b/moved")
    (tmp_path / "here.npz").rename(tmp_path / "b/there.npz")
    code, _, err = hierfl("run", "--resume", "b/moved")
    assert (code, len(lines(err))) == (2, 1)
    arrays(tmp_path / "other.npz", seed=1)
    before = (tmp_path / "b/moved/config.toml").read_text()
    code, _, err = hierfl("run", "--resume", "b/moved", "--data", "other.npz")
    assert (code, "holds other data than b/moved was run on" in err) == (2, True)
    assert (tmp_path / "b/moved/config.toml").read_text() == before
    assert hierfl("run", "--resume", "b/moved", "--data", "b/there.npz", "--quiet")[0] == 0
    assert tomllib.loads((tmp_path / "b/moved/config.toml").read_text())["run"]["data"] == str(tmp_path / "b/there.npz")
    whole, moved = (json.loads((tmp_path / f / "summary.json").read_text()) for f in ("whole", "b/moved"))
    for summary in (whole, moved):
        del summary["seconds_per_round"], summary["data"]
    assert whole == moved
    (tmp_path / "b/there.npz").rename(tmp_path / "here.npz")
    assert hierfl("report", "b/moved", "--quiet")[0] == 0
    assert hierfl("report", "b/moved", "--quiet", "--data", "other.npz")[0] == 2
    assert hierfl("report", "b/moved", "--quiet", "--data", "here.npz")[0] == 0
    assert hierfl("run", "--resume", "b/moved", "--rounds", 5)[2].startswith(
        "error: --resume goes on with what the run's folder says, without --rounds"
    )


def test_home_is_expanded_everywhere(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    arrays(home / "mine.npz")
    common = ("--network", "mlp:4", "--rounds", 1, "--quiet")
    assert hierfl("run", "pfedvem", "--data=~/mine.npz", "--split", "natural", *common, "--out=~/r")[0] == 0
    assert (
        hierfl("run", "fedavg", "--data", "mine", "--data-root=~", "--split", "natural", *common, "--out=~/s")[0] == 0
    )
    assert hierfl("run", "--resume", "~/r", "--quiet")[0] == 0
    assert hierfl("report", "~/r", "--quiet", "--no-features")[0] == 0
    assert (home / "r/posterior.nc").is_file()
    assert not (tmp_path / "~").exists()
    with pytest.raises(UserError, match="home directory"):
        user_path("~nobody-of-this-name/x")
    for text, words in (("", "an empty name"), ("a\0b", "null character"), ("\udcff", "not valid UTF-8")):
        with pytest.raises(UserError, match=words):
            user_path(text)
