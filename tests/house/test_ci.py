"""What CI takes of the slow tests: every one is in a shard, and a shard touches what its tests do."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from support.budget import SLOW_TESTS
from support.paths import ROOT


@pytest.fixture(scope="module")
def shards() -> ModuleType:
    """``.ci/shards.py``."""
    spec = importlib.util.spec_from_file_location("ci_shards", ROOT / ".ci" / "shards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_shards"] = module
    spec.loader.exec_module(module)
    return module


def test_a_failed_step_keeps_its_last_lines(
    shards: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """They are printed again at the end of a run, of which the beginning may not be kept."""
    monkeypatch.setitem(sys.modules, "shards", shards)
    spec = importlib.util.spec_from_file_location("ci_steps", ROOT / ".ci" / "steps.py")
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)
    for log in (None, tmp_path / "log"):
        with pytest.raises(steps.Failed, match="lists") as failed:
            steps.step("lists", "seq 100 >&2; exit 3", tmp_path, log=log)
        assert failed.value.last == [str(k) for k in range(41, 101)]
        assert "\n99\n100\n" in capsys.readouterr().out
    assert (tmp_path / "log").read_text().splitlines() == [str(k) for k in range(1, 101)]
    steps.step("ends well", "echo so", tmp_path)
    assert "so\n== ends well: 0 s" in capsys.readouterr().out


def test_every_slow_test_is_in_one_shard(shards: ModuleType, request: pytest.FixtureRequest) -> None:
    slow = request.config.stash.get(SLOW_TESTS, None)
    if slow is None:
        pytest.skip("only a part of the tests was collected")
    recorded = [test for shard in shards.read() for test in shard.tests]
    assert len(recorded) == len(set(recorded))
    assert set(recorded) == set(slow), "python .ci/shards.py measure"


def test_shards_are_short_and_touch_what_their_files_do(shards: ModuleType) -> None:
    for shard in shards.read():
        # A test of many cases may be a shard of its own.
        assert shard.seconds <= shards.LIMIT or len(shard.tests) == 1, shard.name
        assert shard.touches == shards.touched_by(shard.files), f"{shard.name}: python .ci/shards.py measure"
        assert shard.touches


def test_packages_of_the_house_are_found_by_what_a_test_imports(shards: ModuleType) -> None:
    assert shards.folder_of(["inference", "server", "rules", "means", "SampleWeighted"]) == "inference/server/rules"
    assert shards.folder_of(["rng", "normals"]) == "hierfl"
    assert shards.folder_of(["models", "PFedVEM"]) == "models"
    touched = shards.touched_by(["tests/inference/engines/test_remote.py"])
    assert {"inference/engines", "inference", "models", "hierfl/nn/networks", "hierfl/data/formula"} <= set(touched)


def test_a_run_takes_two_that_the_change_touches_and_one_by_turns(shards: ModuleType) -> None:
    """Of eleven shards two have the changed file or package; over many commits every one has its turn."""
    all_shards = [
        shards.Shard(f"room-{k}", {f"tests/room/test_{k}.py::test_one": 10.0}, (f"inference/room{k}",))
        for k in range(11)
    ]
    files = ["inference/room3/a.py", "tests/room/test_7.py", "README.md", "inference/room9/b.py"]
    turns = set()
    for commit in range(200):
        chosen = shards.choose(all_shards, str(commit), lambda since: files, lambda shard: 7.0)
        assert len(chosen) == 3
        assert chosen[0][0].name == "room-7"  # the test itself has changed
        assert chosen[1][0].name in ("room-3", "room-9")
        assert "inference/room" in chosen[1][1]
        turns.add(chosen[2][0].name)
    assert len(turns) == 10
    chosen = shards.choose(all_shards, "abc", lambda since: ["README.md"], lambda shard: 7.0)
    assert [why for _, why in chosen] == ["the turn of commit abc"]
    ages = {"room-2": 101.0, "room-4": 180.0, "room-5": math.inf}
    for due, why in (("room-5", "is due: it has no record of having passed"), ("room-4", "is due: it passed 180 comm")):
        ((shard, reason),) = shards.choose(
            all_shards, "abc", lambda since: [], lambda shard: ages.get(shard.name, 100.0)
        )
        assert (shard.name, reason[: len(why)]) == (due, why)
        del ages[due]


def test_each_shard_asks_what_has_changed_since_it_passed(shards: ModuleType) -> None:
    first, second = (
        shards.Shard(f"room-{k}", {f"tests/room/test_{k}.py::test_one": 1.0}, ("hierfl/nn",), passed=passed)
        for k, passed in enumerate(("old", "new"))
    )
    since = {"old": ["hierfl/nn/a.py"], "new": []}
    assert shards.choose([first, second], "head", lambda commit: since[commit])[0][0] is first
    assert "touches" not in shards.choose([second], "head", lambda commit: since[commit])[0][1]
    assert shards.oldest([shards.Shard("a", {}, (), passed="HEAD"), shards.Shard("b", {}, ())], 1) == ["b"]
    assert [shards.commits_ago(shards.Shard("a", {}, (), passed=name)) for name in ("HEAD", "0" * 40)] == [0, -1]
    files = set(shards.git("ls-files").splitlines())
    assert shards.changed("no commit") == files


def test_shards_keep_the_commit_at_which_they_passed(
    shards: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RECORD", tmp_path / "slow.json")
    seconds = {"tests/house/test_ci.py::test_x": 1.0, "tests/models/test_pfedv.py::test_y": 1.0}
    shards.write(replace(shard, passed="abc") for shard in shards.cut(seconds))
    assert [shard.passed for shard in shards.read()] == ["abc", "abc"]
    shards.write(shards.cut({**seconds, "tests/models/test_pfedv.py::test_z": 1.0}))
    assert {shard.name: shard.passed for shard in shards.read()} == {"house-1": "abc", "models-1": ""}


def test_shards_are_cut_by_folder_and_length(shards: ModuleType) -> None:
    seconds = {f"tests/models/test_pfedv.py::test_{k}": 80.0 for k in range(3)}
    shard_list = shards.cut({**seconds, "tests/house/test_ci.py::test_x": 1.0})
    assert [(shard.name, len(shard.tests)) for shard in shard_list] == [
        ("house-1", 1),
        ("models-1", 2),
        ("models-2", 1),
    ]
