"""How threads wait for each other is said before torch is loaded, and only where nobody has said it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hierfl.threads import SAID, TURNS

ASKED = "import os, hierfl; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("said", "turns"),
    [({}, str(TURNS)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_that_wait_sleep_soon_unless_the_environment_says_how(said: dict[str, str], turns: str) -> None:
    rest = {name: value for name, value in os.environ.items() if name not in SAID}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASKED], env={**rest, **said}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == turns
