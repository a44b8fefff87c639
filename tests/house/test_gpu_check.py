"""The GPU in one command, without a GPU: the dry run, and whether what travels with it is all that is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT

SUPPORT = ROOT / "tests" / "support"
PARTS = ["environment", "cpu-against-cuda", "tests", "many", "fashion-mnist", "options"]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are bash scripts, and there is none")


def packages(name: str) -> dict[str, str]:
    """{package: its requirement} of a list in gpu_wheels.sh."""
    (words,) = re.findall(rf"^{name}=\(\n(.*?)^\)", (SUPPORT / "gpu_wheels.sh").read_text(), re.MULTILINE | re.DOTALL)
    return {re.split(r"[<>=]", word, maxsplit=1)[0]: word for word in words.replace('"', "").split()}


def test_wheels_are_of_all_that_is_not_there() -> None:
    """Each of the dependencies is carried as pyproject.toml wants it, or is named among what is there; none is both."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    carried, installed = packages("carried"), packages("there")
    assert not carried.keys() & installed.keys()
    assert {"torch", "torchvision", "numpy"} <= installed.keys()
    needed = {re.split(r"[<>=]", requirement, maxsplit=1)[0]: requirement for requirement in wanted}
    assert {name: carried.get(name, requirement) for name, requirement in needed.items() if name not in installed} == {
        name: requirement for name, requirement in needed.items() if name not in installed
    }


def check(*arguments: object, timeout: float = 1200) -> subprocess.CompletedProcess[str]:
    """``gpu_check.sh`` with this interpreter."""
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SUPPORT / "gpu_check.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--minutes", "0"], "error: --minutes must be more than 0, not 0\n"),
        (["--device", "tpu"], "error: --device must be cuda, cuda:N or cpu, not 'tpu'\n"),
        (["--wheels", "nowhere"], "error: nowhere is no folder\n"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str) -> None:
    done = check(*arguments)
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.slow
def test_a_dry_run_passes_all_that_needs_no_cuda(tmp_path: Path) -> None:
    out, wheels = tmp_path / "gpu.json", tmp_path / "wheels"
    wheels.mkdir()
    # Minutes for a machine that others use, too.
    done = check("--device", "cpu", "--small", "--minutes", 15, "--wheels", wheels, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"no wheels in {wheels}: what is installed here is used\n")
    record = json.loads(out.read_text())
    assert record["state"] == "passed, but needs cuda"
    assert {name: part["state"] for name, part in record["parts"].items()} == {
        name: "needs cuda" if name == "tests" else "passed" for name in PARTS
    }
    assert record["hardware"]["device"] == "cpu"
    assert record["hardware"]["cores"] == os.cpu_count()
    assert record["versions"]["python"] == sys.version.split()[0]
    assert all(record["versions"][name] for name in ("hierfl", "torch", "pyro-ppl", "numpy"))
    figures = {name: part["figures"] for name, part in record["parts"].items()}
    assert figures["tests"]["failed"] == figures["tests"]["passed"] == 0 < figures["tests"]["skipped"]
    assert record["parts"]["tests"]["error"] == "needs a CUDA device, and there is none"
    compared = figures["cpu-against-cuda"]
    assert len(compared["cases"]) == len(compared["methods"]) >= 4
    assert 0 <= compared["largest_relative_difference"] <= 1e-8
    ways = {name.partition(": ")[2]: case["state"] for name, case in figures["options"]["cases"].items()}
    assert ways == {
        "plain, float64": "passed", "rows streamed from the host": "passed", "CUDA graphs": "needs cuda",
        "plain, float32": "passed", "tf32": "needs cuda", "bf16": "passed",
    }  # fmt: skip
    for name in ("many", "fashion-mnist"):
        assert all(row["median_seconds"] > 0 for row in figures[name]["bench"]["results"][0]["rounds"].values())


def test_a_part_that_does_not_fit_is_said(tmp_path: Path) -> None:
    """None is left out without a word, and the others go on."""
    out = tmp_path / "gpu.json"
    done = check("--device", "cpu", "--small", "--minutes", 0.001, "--wheels", tmp_path, "--out", out)
    assert done.returncode == 1, done.stderr
    record = json.loads(out.read_text())
    assert record["state"] == "failed"
    assert {name: part["state"] for name, part in record["parts"].items()} == dict.fromkeys(PARTS, "out of time")
