"""Hostile and unlucky input of every family, seeded: one line and exit code 2, or it works; never a traceback."""

from __future__ import annotations

import json
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call
from support.run_folders import Finished

from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.method.settings import make_settings
from hierfl.models import METHODS

RUN = ("--rounds", "1", "--quiet", "--overwrite", "--out", "o")
SMALL = ("-J", "3", "--split", "iid", "--network", "mlp:4")
#: what is said where something else is meant
WORDS = (
    "", " ", "0", "-1", "1", "2", "1e20", "-1e20", "1e300", "1e-300", "nan", "inf", "-inf", "0x10", "1_000", "\u0661",
    "true", "None", "null", "a", "é", "\u202e", "'", '"', "\\", "%s", "{}", "{0}", "[red]", "$HOME", "../x",
    "/dev/null", "/", ".", "~", "~nobody", "=1+1", "@x", "x" * 5000, "1,2", "1;2", "a:b", "iid:3", "label-skew:",
    "dirichlet:-1", "dirichlet:1e300", "classes:0", "mlp:", "mlp:-3", "mlp:1e9", "mlp:4,", "cnn:", "cuda:-1", "hpu",
    "meta", "natural", "digits", "2147483648", "9223372036854775808", "__import__('os')", "a\nb", "\udcff",
)  # fmt: skip
OPTIONS = (
    "--data", "--data-root", "--clients", "--split", "--rounds", "--participation", "--prior", "--validation-fraction",
    "--network", "--response-sd", "--formula", "--group", "--family", "--known-se", "--test-fraction", "--seed",
    "--device", "--chunk", "--quorum", "--evaluate-every", "--ood", "--absent-clients", "--draws",
    "--max-message-ratio", "--set",
)  # fmt: skip
ATOMS = (
    "y", "x", "g", "site", "1", "0", "-1", "3", "1e300", "log(x)", "np.log(x)", "scale(x)", "center(x)", "C(g)",
    "bs(x, df=4)", "poly(x, 2)", "I(x ** 2)", "np.save('a', x)", "x.to_csv('a')", "__import__('os')",
    "os.system('a')", "x.__class__", "center.__init__", "`x`", "`no such`", "offset(x)", "'a'", "{x + 1}",
    "{x.mean()}", "(x + 1)", "np", "scale", "T(g)", "lambda", "x if x else y", "[1]", "x[0]", "x == 1", "é", "x y",
    "1 |", ")", "(", "~", "", "9**9**9", "hypot(x, x)",
)  # fmt: skip


def option(luck: random.Random, folder: Path) -> tuple[str, ...]:
    method = luck.choice(("fedavg", "pfedvem", "mixed-effects", luck.choice(list(METHODS))))
    some = () if method == "mixed-effects" else SMALL
    return ("run", method, *some, *RUN, luck.choice(OPTIONS), luck.choice(WORDS))


def setting(luck: random.Random, folder: Path) -> tuple[str, ...]:
    import importlib

    name = luck.choice(list(METHODS))
    cls = getattr(importlib.import_module(METHODS[name].module), METHODS[name].cls)
    fields = vars(make_settings(cls, {})) or {"none": 0}
    some = () if is_tabular(cls) else SMALL
    return ("run", name, *some, *RUN, "--set", f"{luck.choice(list(fields))}={luck.choice(WORDS)}")


def table(folder: Path) -> str:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{'ab'[k % 2]},s{k // 6}" for k in range(36)]
    return "\n".join(["y,x,g,site", *rows, ""])


def formula(luck: random.Random, folder: Path) -> tuple[str, ...]:
    (folder / "t.csv").write_text(table(folder))
    terms = [luck.choice(ATOMS) for _ in range(luck.randint(1, 3))]
    joined = "".join(t + luck.choice((" + ", " * ", ":", " - ", "/", " ** ", " ")) for t in terms).rstrip(" +*:-/")
    text = luck.choice(("y ~ {} + (1 | site)", "y ~ 1 + ({} | site)", "{} ~ x + (1 | site)", "y ~ x + (1 | {})", "{}"))
    return ("run", "mixed-effects", "--data", "t.csv", "--formula", text.format(joined), *RUN)


def csv_file(luck: random.Random, folder: Path) -> tuple[str, ...]:
    lines = table(folder).splitlines()
    for _ in range(luck.randint(1, 3)):
        row = luck.randrange(len(lines))
        cells = lines[row].split(",")
        cells[luck.randrange(len(cells))] = luck.choice((*WORDS, "x,x", "?", "NA", '"', '"a\nb"', "\0", "s1\r"))
        lines[row] = ",".join(cells)
    data = "\n".join(lines).encode("utf-8", "surrogateescape")
    if luck.random() < 0.3:
        cut = luck.randrange(len(data))
        data = luck.choice((data[:cut], data[:cut] + bytes([luck.randrange(256)]) + data[cut:], b"\xef\xbb\xbf" + data))
    (folder / "t.csv").write_bytes(data)
    return ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ x + (1 | site)", *RUN)


def npz_file(luck: random.Random, folder: Path) -> tuple[str, ...]:
    y = np.arange(40) % 3
    arrays = {
        "x_train": np.random.default_rng(0).normal(size=(40, 4)),
        "y_train": y,
        "x_test": np.ones((9, 4)),
        "y_test": y[:9],
    }
    name = luck.choice(list(arrays))
    old = arrays[name]
    arrays[name] = luck.choice(
        (
            old[:0],
            old[..., None],
            old.astype(complex),
            old.astype("U"),
            old.astype(bool),
            old.astype("M8[s]"),
            old * np.nan,
            old * 1e300,
            -old,
            old[:3],
            np.float64(3),
            old.astype(">f4"),
            old.astype(np.uint8),
            old.astype("f2"),
            old + 0.5,
            old.reshape(-1),
            np.zeros((40, 0)),
        )
    )
    np.savez(folder / "d.npz", **arrays)
    if luck.random() < 0.3:
        data = bytearray((folder / "d.npz").read_bytes())
        for _ in range(luck.randint(1, 8)):
            data[luck.randrange(len(data))] = luck.randrange(256)
        (folder / "d.npz").write_bytes(data[: luck.randrange(1, len(data))] if luck.random() < 0.3 else data)
    return ("run", luck.choice(("fedavg", "pfedvem")), "--data", "d.npz", *SMALL, *RUN)


def run_folder(luck: random.Random, folder: Path) -> tuple[str, ...]:
    shutil.rmtree(folder / "c", ignore_errors=True)
    shutil.copytree(folder / "whole", folder / "c")
    files = [p for p in (folder / "c").rglob("*") if p.is_file() and p.suffix != ".png" and p.name != ".lock"]
    path = luck.choice(sorted(files))
    data = path.read_bytes()
    if path.suffix == ".json" and luck.random() < 0.7:
        record = json.loads(data)
        inner = record
        while isinstance(inner, dict) and inner and luck.random() < 0.8:
            key = luck.choice(sorted(inner))
            if not isinstance(inner[key], dict) or luck.random() < 0.4:
                inner[key] = luck.choice((None, -1, 1e400, "x", [], {}, True, 10**30, [None]))
                break
            inner = inner[key]
        path.write_text(json.dumps(record))
    elif path.suffix in (".toml", ".csv") and luck.random() < 0.8:
        lines = data.decode().splitlines()
        row = luck.randrange(len(lines))
        cut = "," if path.suffix == ".csv" else " = "
        cells = lines[row].split(cut)
        cells[luck.randrange(len(cells))] = (
            luck.choice(WORDS[:40])
            if path.suffix == ".csv"
            else luck.choice(
                ("-1", '""', "true", "1e300", "[1]", '"x"', '"mlp:9"', "nan", "10", '"../../x"', '"digits"', '"fedper"')
            )
        )
        lines[row] = cut.join(cells)
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    else:
        path.write_bytes(luck.choice((b"", data[: len(data) // 2], bytes(reversed(data)), data + b"x")))
    return luck.choice(
        (
            ("run", "--resume", "c", "--quiet"),
            ("report", "c", "--quiet", "--no-features"),
            ("compare", "c", "other", "--quiet"),
        )
    )


FAMILIES: dict[str, Callable[[random.Random, Path], tuple[str, ...]]] = {
    "option": option, "setting": setting, "formula": formula, "csv": csv_file, "npz": npz_file, "folder": run_folder,
}  # fmt: skip


@pytest.mark.parametrize("cases", [4, pytest.param(110, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_input_is_one_line(
    family: str, cases: int, hierfl: Call, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERFL_OFFLINE", "1")
    if family == "folder":
        for name, method in (("whole", "pfedvem"), ("other", "fedavg")):
            finished(method, name)
    problems, refused = [], 0
    for number in range(cases):
        luck = random.Random(f"{family} {number}")
        command = FAMILIES[family](luck, tmp_path)
        shutil.rmtree(tmp_path / "o", ignore_errors=True)
        try:
            code, _, err = hierfl(*command)
        except BaseException as fault:  # whatever it is, it is collected and told below
            if isinstance(fault, KeyboardInterrupt):
                raise
            problems.append((command, "".join(traceback.format_exception(fault)[-3:])))
            continue
        refused += code == 2
        lines = err.splitlines()
        if code not in (0, 2) or (code == 2 and (len(lines) != 1 or not lines[0].startswith("error: "))):
            problems.append((command, f"{code}: {err}"))
    assert not problems, "\n\n".join(f"{' '.join(map(repr, command))}\n{what}" for command, what in problems)
    assert refused
