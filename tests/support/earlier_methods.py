"""Fingerprints of an earlier checkout's methods that give today's numbers: writes experiments/earlier_methods.toml.

    python -P tests/support/earlier_methods.py PYTHON CHECKOUT [NAME ...]

PYTHON is an interpreter that has CHECKOUT installed. For a change that golden runs (:mod:`.golden`) of both
checkouts have shown to move no number: runs and studies that were begun with CHECKOUT go on. NAME: of methods; all
without. An entry holds for today's files alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
HEAD = "# Methods' fingerprints, and earlier ones of the same numbers; written by tests/support/earlier_methods.py"
LIST = """
import json
from hierfl.experiments.methods import load
try:
    from hierfl.experiments.fingerprints import fingerprint
except ModuleNotFoundError:  # (before it had a file of its own)
    from hierfl.experiments.methods import fingerprint
from hierfl.models import METHODS
found = {}
for name in METHODS:
    cls = load(name).cls
    mine = type("Mine", (cls,), {"__module__": "mine"})
    found[name] = load(name).digest, fingerprint(mine, b"").partition("-")[2]
print(json.dumps(found))
"""


def fingerprints(python: str, checkout: Path) -> dict[str, list[str]]:
    """Of each method: its own, and of the files that a class which inherits from it builds on."""
    done = subprocess.run([python, "-P", "-c", LIST], capture_output=True, text=True, check=True, cwd=checkout)
    by_method: dict[str, list[str]] = json.loads(done.stdout)
    return by_method


def main(python: str, checkout: str, *names: str) -> None:
    """Adds the earlier fingerprints to today's.

    Args:
        python: an interpreter with the earlier checkout installed.
        checkout: its folder.
        names: methods.
    """
    path = HERE / "experiments" / "earlier_methods.toml"
    before, now = fingerprints(python, Path(checkout)), fingerprints(sys.executable, HERE)
    known: dict[str, list[str]] = tomllib.loads(path.read_text())
    by_fingerprint: dict[str, list[str]] = {}
    for name in sorted(now):
        for new, old in zip(now[name], before.get(name, now[name]), strict=True):
            earlier = known.get(new, []) + ([old] if not names or name in names else [])
            by_fingerprint[new] = sorted({*by_fingerprint.get(new, []), *earlier} - {new})
    lines = [f'"{k}" = {json.dumps(v)}' for k, v in by_fingerprint.items() if v]
    path.write_text("\n".join([HEAD, *lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
