"""How threads wait for each other is said before torch is loaded, and only where nobody has said it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hierfl.threads import TURNS, TURNS_BUSY, WAIT_VARIABLES, turns

ASKED = "import os, hierfl; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, ""), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_that_wait_sleep_soon_unless_the_environment_says_how(variables: dict[str, str], expected: str) -> None:
    rest = {name: value for name, value in os.environ.items() if name not in WAIT_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASKED], env={**rest, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ([expected] if expected else [str(TURNS), str(TURNS_BUSY)])


def test_only_a_busy_machine_has_them_sleep_at_once() -> None:
    assert (turns(0.0, 2), turns(2.0, 2), turns(2.5, 2), turns(8.0, 16)) == (TURNS, TURNS, TURNS_BUSY, TURNS)
