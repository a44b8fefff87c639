"""What the check of a GPU does, part by part: gpu_check.py starts each in a process of its own.

A part keeps its figures in a file while it works, so that those of one that is stopped are not lost.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import hierfl

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.gpu_task import Failed, NeedsCuda, Task, told
from support.paths import ROOT

CUDA_TESTS = ROOT / "tests" / "inference" / "engines" / "test_cuda.py"
#: at most so many worker processes of the CUDA tests share the device
WORKERS = 8
#: what the check needs beside hierfl's own dependencies, and what its numbers may depend on
ALSO = ("pyro-api", "opt-einsum", "xarray-einstats", "h5py", "triton", "pytest", "pytest-xdist", "hypothesis")


def name_of(requirement: str) -> str:
    """The package that a requirement names."""
    return re.split(r"[<>=!~\[ ;(]", requirement, maxsplit=1)[0]


def version_of(name: str) -> str | None:
    """The version that is installed; None where none is."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unmet() -> list[str]:
    """hierfl's dependencies that are missing or of another version, and what they need and is missing."""
    from packaging.requirements import Requirement

    problems = []
    for text in importlib.metadata.requires("hierfl") or []:
        wanted, version = Requirement(text), version_of(name_of(text))
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            problems.append(f"{text} (installed: {version})")
        if version is None or wanted.name in ("torch", "torchvision"):  # the machine's own
            continue
        for below in map(Requirement, importlib.metadata.requires(wanted.name) or []):
            needed = below.marker is None or below.marker.evaluate({"extra": ""})
            if needed and version_of(below.name) is None:
                problems.append(f"{below.name}, which {wanted.name} needs, is missing")
    return problems


def environment(task: Task) -> None:
    """Hardware, driver and versions; fails where hierfl's dependencies are not met."""
    names = [name_of(text) for text in importlib.metadata.requires("hierfl") or []]
    versions = {"python": platform.python_version(), "hierfl": hierfl.__version__}
    task.figures["versions"] = versions | {name: version_of(name) for name in (*names, *ALSO)}
    task.figures["hardware"] = {"system": platform.platform()}
    if task.cuda:
        task.figures["hardware"]["driver"] = driver()
    task.figures["unmet"] = unmet()
    task.keep()
    import torch

    task.figures["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if task.cuda and not torch.cuda.is_available():
        raise Failed("torch sees no CUDA device")
    if task.cuda:
        about = torch.cuda.get_device_properties(task.device)
        task.figures["hardware"] |= {
            "gpu_memory_gib": round(about.total_memory / 2**30, 1), "multiprocessors": about.multi_processor_count,
            "compute_capability": f"{about.major}.{about.minor}",
        }  # fmt: skip
    from hierfl.experiments.bench.machine import Machine

    task.figures["hardware"] |= asdict(Machine.this_machine(task.device))
    task.short(f"{task.figures['hardware']['device']}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    if task.figures["unmet"]:
        raise Failed(f"not met: {'; '.join(task.figures['unmet'])}")


def driver() -> str:
    """What the driver's own program says, or why it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "there is no nvidia-smi"
    asked = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
    try:
        done = subprocess.run(
            [program, f"--query-gpu={asked}", "--format=csv"], capture_output=True, text=True, timeout=10
        )
    except subprocess.TimeoutExpired as error:
        return str(error)
    return (done.stdout + done.stderr).strip()


def cuda_tests(task: Task) -> None:
    """The CUDA tests under pytest; all of them skip where there is no CUDA."""
    import pytest
    from support.gpu_outcomes import Outcomes

    workers = min(WORKERS, os.cpu_count() or 1) if task.cuda else 0
    task.figures["workers"] = workers
    outcomes = Outcomes(task)
    how = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    if task.small:
        how += ["-k", "not ["]  # tests that are not of every method
    how += ["-n", str(workers), "--maxprocesses", str(WORKERS)]
    code = int(pytest.main([*how, str(CUDA_TESTS)], plugins=[outcomes]))
    counts = Counter(outcomes.states.values())
    task.short(", ".join(f"{counts[state]} {state}" for state in ("passed", "failed", "skipped")))
    for name, message in [*outcomes.failures.items()][:5]:
        task.short(f"{name}: {(message.splitlines() or ['without a message'])[0]}")
    if code or counts["failed"]:
        raise Failed(f"{counts['failed']} tests failed, and pytest ended with status {code}")
    if not counts["passed"]:
        reason = ", ".join(outcomes.skips) or "no test was found"
        raise NeedsCuda(reason) if outcomes.skips and not task.cuda else Failed(reason)


def benchmark(task: Task, *arguments: str) -> None:
    """``hierfl bench``; on CUDA it times graphs, tf32 and bf16 beside."""
    out = task.record.with_name(f"bench-{task.part}.json")
    command = ["bench", *arguments, "--device", task.device, "--no-references"]
    task.figures["command"] = " ".join(["hierfl", *command])
    task.keep()
    code = subprocess.run([sys.executable, "-m", "hierfl", *command, "--out", str(out)]).returncode
    if out.exists():
        task.figures["bench"] = json.loads(out.read_bytes())
    if code:
        raise Failed(f"{task.figures['command']} ended with status {code}")
    for result in task.figures["bench"]["results"]:
        medians = {name: row["median_seconds"] for name, row in result["rounds"].items()}
        times = ", ".join(f"{name} {value:.3g} s" for name, value in medians.items())
        peak = f"{result['peak_memory_mib']:.0f} MiB"
        task.short(f"{result['setting']['about']}, {result['setting']['clients']} clients, a round: {times}; {peak}")


def many(task: Task) -> None:
    """Rounds of up to ten thousand clients."""
    sizes = ("500", "1") if task.small else ("100,1000,10000", "2")
    benchmark(task, "many", "--clients", sizes[0], "--repeats", sizes[1])


def fashion_mnist(task: Task) -> None:
    """Rounds on noise of Fashion-MNIST's size; the dry run's is of the digits'."""
    benchmark(task, *(("digits", "--repeats", "1") if task.small else ("fashion-mnist", "--repeats", "3")))


def compare(task: Task) -> None:
    """See :func:`support.gpu_fits.compare`."""
    from support import gpu_fits

    gpu_fits.compare(task)


def options(task: Task) -> None:
    """See :func:`support.gpu_fits.options`."""
    from support import gpu_fits

    gpu_fits.options(task)


PARTS: dict[str, Callable[[Task], None]] = {
    "environment": environment, "cpu-against-cuda": compare, "tests": cuda_tests, "many": many,
    "fashion-mnist": fashion_mnist, "options": options,
}  # fmt: skip


def main(text: str) -> None:
    """Does one part, and keeps how it has ended."""
    task = Task(**{**(settings := json.loads(text)), "record": Path(settings["record"])})
    try:
        PARTS[task.part](task)
        task.keep(state="passed")
    except NeedsCuda as error:
        task.keep(state="needs cuda", error=str(error))
    except Failed as error:
        task.keep(state="failed", error=str(error))
    except Exception as error:
        task.keep(state="failed", error=told(error))


if __name__ == "__main__":
    main(sys.argv[1])
