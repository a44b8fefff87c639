"""The command line answers bad input with one line and code 2, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.commands import Call


def npz(path: Path, **change: object) -> Path:
    arrays = {
        "x_train": np.zeros((12, 3)), "y_train": np.arange(12) % 3,
        "x_test": np.zeros((6, 3)), "y_test": np.arange(6) % 3,
    }  # fmt: skip
    np.savez(path, **{k: v for k, v in {**arrays, **change}.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "which method? known: pfedvem, fedpop, mixed-effects, pfedv, fedv, pfedvmp, pfedeb,"),
        (
            ["run", "pfedvme"],
            "unknown method 'pfedvme'; known: pfedvem, fedpop, mixed-effects, pfedv, fedv, pfedvmp,",
        ),
        (["run", "absent.py"], "no file absent.py"),
        (
            ["run", "pfedvem", "--data", "digts"],
            "unknown data set 'digts'; known: digits, mnist, fashion-mnist, emnist, cifar10, ",
        ),
        (["run", "pfedvem", "--data", "absent.npz"], "absent.npz; it should be an .npz with x_train"),
        (["run", "pfedvem", "--split", "labels:5"], "unknown split 'labels'; known: label-skew:C"),
        (["run", "pfedvem", "--split", "label-skew:3"], "take a divisor of 10"),
        (["run", "pfedvem", "--prior", "flatt"], "unknown prior 'flatt'; known: hierarchical, fixed, flat"),
        (["run", "fedavg", "--prior", "flat"], "fedavg has no prior to choose"),
        (["run", "pfedvem", "--prior", "flat", "--set", "prior=fixed"], "prior is set twice"),
        (["run", "pfedvem", "--prior", "flat", "--set", "tau=deviation"], "tau=deviation changes nothing"),
        (["run", "pfedvem", "--overwrite"], "--overwrite replaces the run in --out; say which"),
        (["run", "pfedvem", "--response-sd", "5"], "--response-sd is a regression's"),
        (["run", "pfedvem", "--network", "mlp:99999999999"], "does not fit into memory"),
        (["run", "pfedvem", "--device", "meta"], "device 'meta' is not there"),
        (
            ["run", "--resume", "absent", "--rounds", "3"],
            "--resume goes on with what the run's folder says, without --rounds",
        ),
        (["run", "pfedvem", "--rounds", "1", "--out", "/dev/null/x"], "/dev/null is no folder"),
        (
            ["run", "pfedvem", "--set", "sigma=1"],
            "unknown setting of pfedvem 'sigma'; known: prior, tau, sigma_0",
        ),
        (["run", "pfedvem", "--set", "sigma_0"], "settings are given as KEY=VALUE"),
        (["run", "pfedvem", "--set", "sigma_0=big"], "sigma_0 must be a number, not 'big'"),
        (["run", "pfedvem", "--set", "sigma_0=nan"], "sigma_0 must be finite"),
        (["run", "pfedvem", "--set", "sigma_0=0"], "sigma_0 must be above 0"),
        (["run", "pfedvem", "--set", "particles=2.5"], "particles must be a whole number"),
        (["run", "pfedvem", "--set", "particles=0"], "particles must be at least 1"),
        (["run", "pfedvem", "--rounds", "many"], "Invalid value for '--rounds'"),
        (["run", "pfedvem", "--rounds", "-1"], "rounds must be at least 0, not -1"),
        (["run", "pfedvem", "--clients", "0"], "at least one client, not 0"),
        (["run", "pfedvem", "--clients", "-4"], "at least one client, not -4"),
        (["run", "pfedvem", "--clients", "99999"], "99999 clients are more than the data allow"),
        (["run", "pfedvem", "--clients", "1400"], "too few for the 700 clients"),
        (["run", "pfedvem", "--split", "dirichlet:0.01"], "let it redraw: --split dirichlet:0.01,redraw"),
        (["run", "pfedvem", "--participation", "0"], "participation must lie in (0, 1], not 0"),
        (["run", "pfedvem", "--participation", "1.5"], "participation must lie in (0, 1], not 1.5"),
        (["run", "pfedvem", "--participation", "nan"], "participation must lie in (0, 1], not nan"),
        (["run", "pfedvem", "--validation-fraction", "1"], "validation must be a fraction in [0, 1)"),
        (["run", "pfedvem", "--chunk", "-1"], "chunk must be at least 0"),
        (["run", "pfedvem", "--quorum", "21"], "quorum of 21 cannot be reached by 20 clients"),
        (["run", "pfedvem", "--network", "mlp:0"], "network mlp is written mlp:H,H,..., with whole"),
        (["run", "pfedvem", "--network", "resnet"], "unknown network 'resnet'; known: linear"),
        (["run", "pfedvem", "--response-sd", "0"], "noise must be a number above zero"),
        (["run", "pfedvem", "--device", "cuda:97"], "device 'cuda:97' is not there; available: cpu"),
        (["run", "pfedvem", "--device", "abacus"], "device 'abacus' is not there"),
        (["run", "pfedvem", "--seed", "-1"], "seed must be at least 0"),
        (["run", "--resume", "absent"], "absent is not the folder of a run: it has no config.toml"),
        (["run", "pfedvem", "--resume", "absent"], "absent is not the folder of a run: it has no config.toml"),
        (["run", "pfedvem", "--colour", "red"], "No such option"),
        (["walk"], "No such command"),
        (["methods", "pfed"], "unknown method 'pfed'"),
        (["run", "fedpa-ft"], "unknown method 'fedpa-ft': it is fedpa with --set ft_epochs=10, say"),
        (["run", "moon-ft"], "unknown method 'moon-ft'; known: pfedvem"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(arguments: list[str], words: str, hierfl: Call, tmp_path: Path) -> None:
    code, out, err = hierfl(*arguments)
    assert code == 2
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": None}, "lacks y_train"),
        ({"x_train": np.array([{}] * 12, dtype=object)}, "x_train cannot be read without pickle"),
        ({"x_test": np.zeros((6, 9))}, "do not fit together"),
        ({"x_train": np.full((12, 3), np.nan)}, "NaN"),
        ({"y_test": np.full(6, 7)}, "out of the range 0..2"),
    ],
)
def test_files_that_cannot_be_used(change: dict, words: str, hierfl: Call, tmp_path: Path) -> None:
    npz(tmp_path / "bad.npz", **change)
    code, _, err = hierfl("run", "pfedvem", "--data", "bad.npz", "-J", 2, "--split", "iid")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not (tmp_path / "runs").exists()


def test_a_file_of_another_kind(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("a,b")
    code, _, err = hierfl("run", "pfedvem", "--data", "table.txt")
    assert (code, err) == (2, "error: table.txt is no .npz file\n")
