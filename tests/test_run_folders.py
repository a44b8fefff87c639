"""Run folders: from elsewhere, moved, left over, damaged, on a full disk, shared; and whose code is run."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import random
import resource
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call

from hierfl.arviz_io import import_arviz, read
from hierfl.errors import UserError
from hierfl.experiments import trust
from hierfl.experiments.grid import run_cell
from hierfl.experiments.papers.table import table_cell
from hierfl.experiments.papers.table_definitions import TABLES
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.file_lock import Busy, locked
from hierfl.files import check_writable, user_path, write_whole

SMALL = ("-J", 3, "--split", "iid", "--rounds", 2, "--network", "mlp:4", "--quiet")
METHOD = """
from pathlib import Path
from hierfl.models import FedAvg
Path({mark!r}).touch()
class Mine(FedAvg):
    name = "mine"
"""


def lines(err: str) -> list[str]:
    return err.splitlines()


# -- code ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stranger(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """A finished run of somebody else's method file, which leaves a mark where it is executed; none is there yet."""
    mark = tmp_path / "executed"
    (tmp_path / "theirs.py").write_text(METHOD.format(mark=str(mark)))
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "theirs"))
    monkeypatch.setattr(trust, "_named", set())
    assert hierfl("run", "theirs.py", *SMALL, "--out", "r")[0] == 0
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "mine"))
    trust._named.clear()
    mark.unlink()
    return lambda: mark


def test_a_folder_from_elsewhere_runs_no_code_unasked(
    hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]
) -> None:
    mark = stranger()
    for command in (("run", "--resume", "r"), ("report", "r")):
        code, _, err = hierfl(*command)
        assert code == 2
        assert "which you have neither named nor run before: read it, then say --trust-code" in err
        assert len(lines(err)) == 1
    assert hierfl("compare", "r", "r")[0] == 2
    assert not mark.exists()
    assert hierfl("report", "r", "--quiet", "--trust-code")[0] == 0
    assert mark.exists()
    assert hierfl("run", "--resume", "r", "--quiet")[0] == 0  # (from now on it is known)


def test_what_a_user_names_needs_no_more_words(hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]) -> None:
    assert hierfl("run", "theirs.py", "--resume", "r", "--quiet")[0] == 0
    assert stranger().exists()
    assert hierfl("run", "--resume", "r", "--quiet")[0] == 0


def test_a_comparison_runs_no_unknown_code(hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--out", "f")[0] == 0
    code, out, err = hierfl("compare", "r", "f")
    assert code == 0, err
    assert out.startswith("theirs against fedavg")
    assert not stranger().exists()


@pytest.mark.parametrize("command", [("run", "--resume", "r"), ("report", "r"), ("compare", "r", "r")])
def test_a_changed_method_is_not_run(
    command: tuple[str, ...], hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]
) -> None:
    """A folder's configuration names the file, and its digest: neither lets other code run."""
    config, evil = tmp_path / "r/config.toml", tmp_path / "evil.py"
    evil.write_text(METHOD.format(mark=str(stranger())) + "x = 1\n")
    config.write_text(config.read_text().replace("theirs.py", "evil.py"))
    code, _, err = hierfl(*command)
    assert code == 2
    assert len(lines(err)) == 1
    if command[0] != "compare":
        assert "has changed since" in err
    assert not stranger().exists()


def test_what_was_compiled_beside_a_method_is_not_run(hierfl: Call, tmp_path: Path) -> None:
    """Python would take a cache with the source's time and size for the source."""
    source, mark = tmp_path / "mine.py", tmp_path / "executed"
    hostile = METHOD.format(mark=str(mark))
    harmless = hostile.replace(".touch()", ".exists()")
    hostile += "#" * (len(harmless) - len(hostile))
    source.write_text(hostile)
    os.utime(source, (1e9, 1e9))
    py_compile.compile(str(source), importlib.util.cache_from_source(str(source)))
    source.write_text(harmless)
    os.utime(source, (1e9, 1e9))
    assert hierfl("run", "mine.py", *SMALL, "--out", "o")[0] == 0
    assert not mark.exists()


def test_trust_is_for_folders(hierfl: Call) -> None:
    code, _, err = hierfl("run", "fedavg", "--trust-code")
    assert (code, "--trust-code is for --resume" in err) == (2, True)


# -- moved -----------------------------------------------------------------------------------------------------------


def arrays(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    y, who = np.arange(90) % 3, np.arange(90) // 30
    x = rng.normal(size=(90, 4)) + y[:, None]
    np.savez(path, x_train=x, y_train=y, client_train=who, x_test=x[::2], y_test=y[::2], client_test=who[::2])
    return path


def test_a_moved_folder_goes_on_with_moved_data(hierfl: Call, tmp_path: Path) -> None:
    arrays(tmp_path / "here.npz")
    common = ("pfedvem", "--data", "here.npz", "--split", "natural", "--network", "mlp:4", "--quiet")
    assert hierfl("run", *common, "--rounds", 3, "--out", "whole")[0] == 0
    assert hierfl("run", *common, "--rounds", 2, "--out", "a")[0] == 0
    config = tmp_path / "a/config.toml"  # (as if it had been stopped after two rounds of three)
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
    one, two = (json.loads((tmp_path / f / "summary.json").read_text()) for f in ("whole", "b/moved"))
    for summary in (one, two):
        del summary["seconds_per_round"], summary["data"]
    assert one == two
    (tmp_path / "b/there.npz").rename(tmp_path / "here.npz")
    assert hierfl("report", "b/moved", "--quiet")[0] == 2
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


# -- left over -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [(), (".lock",), (".config.toml.part",), (".lock", ".config.toml.part")])
def test_what_a_failed_start_leaves_is_overwritten(left: tuple[str, ...], hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    for name in left:
        (tmp_path / "o" / name).touch()
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, "is not the folder of a run" in err) == (2, True)
    assert ("begin again with --out o --overwrite" in err) == bool(left)
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 2
    assert hierfl("run", "fedavg", *SMALL, "--out", "o", "--overwrite")[0] == 0
    assert not (tmp_path / "o/.config.toml.part").exists()


def test_somebodys_own_files_are_not_overwritten(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o/metrics.csv").write_text("mine\n")
    assert hierfl("run", "fedavg", *SMALL, "--out", "o", "--overwrite")[0] == 2
    assert (tmp_path / "o/metrics.csv").read_text() == "mine\n"


def test_a_tables_cell_begins_again_where_a_start_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays(tmp_path / "fashion-mnist.npz")
    cell = table_cell(TABLES["pfedvem-1"], "fashion-mnist", 3, "local", 0)
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell/.lock").touch()
    (tmp_path / "cell/.config.toml.part").write_text("[run")
    extra = {"data_root": str(tmp_path), "split": "natural", "rounds": 1, "network": "linear"}
    monkeypatch.setitem(TABLES["pfedvem-1"].exceptions, "local", ({}, {}))
    run_cell(cell, tmp_path / "cell", extra, progress=False)
    assert (tmp_path / "cell/summary.json").is_file()


def test_an_impossible_run_leaves_no_folder(hierfl: Call, tmp_path: Path) -> None:
    for more in (("--quorum", 9), ("--participation", 1e-9, "--quorum", 2)):
        assert hierfl("run", "fedavg", *SMALL, *more)[0] == 2
        assert hierfl("run", "fedavg", *SMALL, *more, "--out", "o")[0] == 2
    assert not (tmp_path / "o").exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "fedavg", "lr=0.1,0.2", "--out", "no/x.json"),
        ("ablate", "pfedvem", "--rounds", 1, "--out", "no/x"),
        ("bench", "digits", "--out", "."),
        ("bench", "digits", "--out", ".", "--overwrite"),
        ("bench", "digits", "--out", "no/x.json"),
        ("table", "pfedvem-1", "--out", "no/x"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_run(
    command: tuple[object, ...], hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.inference import Run
    from hierfl.inference.run.fit import Fit

    def never(*_: object, **__: object) -> Run:
        raise AssertionError("something was run")

    (tmp_path / "no").write_text("a file, and no folder")
    monkeypatch.setattr(Fit, "run", never)
    code, _, err = hierfl(*command, "--quiet")
    assert (code, len(lines(err))) == (2, 1), err


def test_links_in_a_folder_from_elsewhere_lead_nowhere(hierfl: Call, tmp_path: Path) -> None:
    """Under the names that files are written by, as a lock, and in place of its own folders."""
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/state-000009.safetensors").write_text("precious")
    assert hierfl("run", "pfedvem", *SMALL, "--out", "o")[0] == 0
    names = [p.relative_to(tmp_path / "o") for p in (tmp_path / "o").rglob("*") if p.is_file() and p.name != ".lock"]
    for name in names:
        (tmp_path / "o" / name.parent / f".{name.name}.part").symlink_to(precious)
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert hierfl("report", "o", "--quiet", "--no-features")[0] == 0
    assert not [p for p in (tmp_path / "o").rglob("*") if p.is_symlink() and not p.name.startswith(".")]
    (tmp_path / "o/.lock").unlink()
    (tmp_path / "o/.lock").symlink_to(precious)
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, lines(err)) == (2, ["error: o/.lock is a symbolic link, and no lock of ours"])
    (tmp_path / "o/.lock").unlink()
    shutil.rmtree(tmp_path / "o/checkpoint")
    (tmp_path / "o/checkpoint").symlink_to(tmp_path / "home")
    for command in (("run", "--resume", "o"), ("run", "pfedvem", *SMALL, "--out", "o", "--overwrite")):
        code, _, err = hierfl(*command)
        assert (code, lines(err)) == (
            2, ["error: o/checkpoint is a symbolic link, and a run's folder holds its own"],
        )  # fmt: skip
    (tmp_path / ".bench.json.part").symlink_to(precious)
    check_writable(tmp_path / "bench.json")
    assert precious.read_text() == "precious"
    assert (tmp_path / "home/state-000009.safetensors").read_text() == "precious"


def test_a_pipe_in_a_folder_is_not_waited_for(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 0
    (tmp_path / "o/metrics.csv").unlink()
    os.mkfifo(tmp_path / "o/metrics.csv")
    code, _, err = hierfl("report", "o", "--no-features", "--quiet")
    assert (code, lines(err)) == (2, ["error: o/metrics.csv is a named pipe, not a regular file"])


def test_names_do_not_reach_the_terminal_as_commands(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\x1b]0;title\x07,site\n1,2,a\n3,4,b\n")
    code, _, err = hierfl("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ q + (1 | site)")
    assert (code, len(lines(err))) == (2, 1)
    assert "\\x1b]0;title\\x07" in err
    assert "\x1b" not in err


# -- one process at a time -------------------------------------------------------------------------------------------

RIVAL = """
import os, sys, time
from pathlib import Path
from hierfl.file_lock import Busy, locked
held = twice = 0
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        with locked(Path("o.lock"), "busy"):
            held += 1
            try:
                os.close(os.open("inside", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                twice += 1
                continue
            os.unlink("inside")
    except Busy:
        pass
print(held, twice)
"""


def test_a_lock_is_never_held_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RIVAL, "2"]
    rivals = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [tuple(map(int, rival.communicate()[0].split())) for rival in rivals]
    assert sum(held for held, _ in counts) > 100
    assert sum(twice for _, twice in counts) == 0


def test_a_lock_excludes_and_stays(tmp_path: Path) -> None:
    with locked(tmp_path / "l", "busy"), pytest.raises(Busy, match="busy"), locked(tmp_path / "l", "busy"):
        pass
    assert (tmp_path / "l").exists()
    with locked(tmp_path / "l", "busy"):
        pass


# -- whole or not at all ---------------------------------------------------------------------------------------------


def test_a_file_is_brought_to_the_disk_before_its_name_and_then_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spied(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(*arguments: object) -> object:
            what = arguments[0]
            is_folder = isinstance(what, int) and stat.S_ISDIR(os.fstat(what).st_mode)
            seen.append((name, "folder" if is_folder else "file"))
            return original(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, spied(name))
    write_whole(tmp_path / "a.txt", b"new", mode=0o600)
    assert seen == [("fsync", "file"), ("replace", "file"), ("fsync", "folder")]
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o600


FULL = """
import resource, sys
from hierfl.experiments import cli
from hierfl.experiments.run_folder import start
write, size = start.write_results, int(sys.argv.pop())
def small(*arguments, **options):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return write(*arguments, **options)
start.write_results = small
cli.main()
"""


def test_a_full_disk_is_one_line_and_the_run_goes_on(hierfl: Call, tmp_path: Path) -> None:
    """Files that may not grow beyond some size fail as on a full disk, whoever writes them."""
    for size in (2_000, 20_000):
        command = [sys.executable, "-c", FULL, "run", "pfedvem", *map(str, SMALL), "--out", "o", "--overwrite"]
        done = subprocess.run([*command, str(size)], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, len(lines(done.stderr))) == (2, 1), done.stderr
        assert done.stderr.startswith("error: File too large: o/")
        assert not (tmp_path / "o/summary.json").exists()
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_responses_are_for_their_owner(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "pfedvem", *SMALL, "--out", "with")[0] == 0
    assert hierfl("run", "pfedvem", *SMALL, "--out", "without", "--no-observed-data")[0] == 0
    for name in ("with", "without"):
        assert stat.S_IMODE((tmp_path / name / "posterior.nc").stat().st_mode) == 0o600
    ours, theirs = read(tmp_path / "with/posterior.nc"), read(tmp_path / "without/posterior.nc")
    assert set(ours.groups()) - set(theirs.groups()) == {"observed_data"}
    assert "y" in theirs.log_likelihood
    import_arviz().summary(theirs, var_names=["w_j"], coords={"client": ["0"]})
    assert hierfl("report", "without", "--quiet", "--no-features")[0] == 0
    assert hierfl("compare", "with", "without")[2].startswith("error: with and without are the same run")


def test_in_memory_is_what_arviz_writes(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "pfedvem", *SMALL, "--out", "o")[0] == 0
    ours = read(tmp_path / "o/posterior.nc")
    ours.to_netcdf(str(tmp_path / "theirs.nc"), engine="h5netcdf")
    theirs = import_arviz().from_netcdf(str(tmp_path / "theirs.nc"))
    assert ours.groups() == theirs.groups()
    for group in ours.groups():
        assert ours[group].identical(theirs[group])


# -- damaged ---------------------------------------------------------------------------------------------------------


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
