"""What the command line says of itself, at once."""

from __future__ import annotations

import subprocess
import sys

from support.budget import slowness, spent
from support.commands import Call


def test_bare_command_shows_its_help(hierfl: Call) -> None:
    code, out, err = hierfl()
    assert code == 2
    assert "Commands:" in out + err
    assert "error:" not in err


def test_help_shows_brackets_as_they_are(hierfl: Call) -> None:
    out = hierfl("predict", "--help")[1]
    assert "[required]" in out
    assert "\\[" not in out


def test_lists(hierfl: Call) -> None:
    code, out, _ = hierfl("methods")
    assert code == 0
    assert all(name in out for name in ("pfedvem", "local", "fedavg", "fedper", "fedrep"))
    code, out, _ = hierfl("methods", "pfedvem")
    assert code == 0
    assert all(name in out for name in ("sigma_0", "head_lr", "prior", "on digits: head_lr="))
    assert ":class:" not in hierfl("methods", "pfedhb")[1]  # words of docstrings
    code, out, _ = hierfl("datasets")
    assert code == 0
    assert all(name in out for name in ("digits", "FILE.npz", "label-skew:C", "dirichlet:BETA"))
    assert hierfl("--version")[0] == 0


def test_help_is_fast_and_heavy_imports_wait() -> None:
    command = [sys.executable, "-m", "hierfl", "--help"]
    seconds = []
    for _ in range(3):
        start = spent()  # CPU seconds of this process and its children: others may hold the cores
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(spent() - start)
    assert min(seconds) < slowness()
    heavy = ("torch", "pyro", "arviz", "pandas", "matplotlib", "sklearn")
    code = f"import sys, hierfl.experiments.cli; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
