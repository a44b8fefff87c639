"""CPU seconds of mixed models' fits beside lme4's, of the same tables, one thread each.

Each fit has a process of its own. The first fit of a process also loads what the program loads late, and those after it
do not: both are said. The machine may be shared: CPU seconds are counted, and the two programs take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.errors import UserError
from hierfl.files import check_writable

from ..run_folder.files import versions, write_text
from ..run_folder.layout import make_numbered_folder
from .machine import Machine
from .mixed_tables import CASES, DRAWS

SCRIPT = Path(__file__).parent / "references" / "mixed.R"
#: one thread in both programs
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
OURS = "from hierfl.experiments.bench.mixed import fit_in_process; fit_in_process()"


def run_mixed_benchmark(repeats: int, references: bool, out: Path | None, overwrite: bool, quiet: bool) -> Path:
    """`hierfl bench mixed`: measures, prints, writes json; arguments as on the command line.

    Returns:
        The json file.

    Raises:
        UserError: for an ``out`` that exists, or R without lme4.
    """
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if repeats < 1:
        raise UserError("repeats must be at least 1")
    path = out or make_numbered_folder("bench-mixed") / "bench.json"
    check_writable(path)
    r = shutil.which("Rscript") if references else None
    record: dict[str, Any] = {
        "benchmark": "mixed", "what": "CPU seconds of a mixed model's fit beside lme4's, one thread",
        "machine": asdict(Machine.this_machine("cpu")), "versions": versions(), "results": {},
    }  # fmt: skip
    if references and r is None and not quiet:
        print("there is no Rscript: lme4's figures of another machine are in docs/speed.md", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            table = Path(folder) / "table.csv"
            case.table().to_csv(table, index=False)
            times = 0 if case.slow else repeats
            ours = {"hierfl": _ours(table, case.formula, case.how, times)}
            if r is not None:
                ours["lme4"] = _run([r, str(SCRIPT), str(table), case.r.format(case.formula), str(times)])
            if name in DRAWS:
                ours["draws"] = _ours(table, case.formula, {**case.how, "draws": 1000}, times)
            record["results"][name] = ours | {"most": case.most}
            write_text(path, json.dumps(record, indent=1) + "\n")
            if not quiet:
                print(line(name, record["results"][name]), flush=True)
    if not quiet:
        print(f"everything is in {path}")
    return path


def line(name: str, result: Mapping[str, Any]) -> str:
    """A fit's figures in lines of 80 letters: median CPU seconds, those of the first fit in brackets."""
    ours = result["hierfl"]
    lines = [name, f"    hierfl {seconds(ours)}, {ours['grown_mib']:.0f} MiB"]
    if "draws" in result:
        lines[1] += f"; with draws {seconds(result['draws'])}"
    if "lme4" in result:
        lines.append(f"    lme4 {seconds(result['lme4'])}; ratio {ratio(result):.2f} (wanted {result['most']:g})")
    return "\n".join(lines)


def seconds(taken: Mapping[str, Any]) -> str:
    """The seconds of fits after the first, and of the first."""
    return f"{usual(taken):.3f} ({taken['first']:.3f})"


def ratio(result: Mapping[str, Any]) -> float:
    """The ratio of medians."""
    return usual(result["hierfl"]) / usual(result["lme4"])


def usual(taken: Mapping[str, Any]) -> float:
    """The median of fits after the first; the first where there is no other."""
    return statistics.median(taken["again"] or [taken["first"]])


def _ours(table: Path, formula: str, how: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    given = json.dumps({"table": str(table), "formula": formula, "how": dict(how), "repeats": repeats})
    return _run([sys.executable, "-P", "-c", OURS, given])


def _run(command: list[str]) -> dict[str, Any]:
    """What a process has measured, its last line.

    Raises:
        UserError: where it has failed.
    """
    done = subprocess.run(command, env={**os.environ, **ALONE}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def fit_in_process() -> None:
    """Prints json of the fit that the process's argument asks for; run in a process of its own."""
    import torch

    from hierfl import mixed_model

    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    df = pd.read_csv(asked["table"], dtype={"site": str, "school": str, "child": str})
    before, taken, fitted = _peak(), list[float](), None
    for _ in range(asked["repeats"] + 1):
        start = time.process_time()
        fitted = mixed_model(df, asked["formula"], **asked["how"])
        taken.append(time.process_time() - start)
    assert fitted is not None
    print(json.dumps({
        "first": taken[0], "again": taken[1:], "log_likelihood": fitted.log_likelihood,
        "peak_mib": _peak(), "grown_mib": _peak() - before,
    }))  # fmt: skip


def _peak() -> float:
    """MiB that this process has held at most; not a number where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return float("nan")
    return float(next(text for text in lines if text.startswith("VmHWM")).split()[1]) / 1024
