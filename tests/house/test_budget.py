"""The budget of CPU seconds fails what is over it, and says what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.budget import SUITE, TEST, Budget, over, sum_of_all, too_dear
from support.paths import ROOT

TESTS = """
import time
import pytest

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.mark.parametrize("k", range(51))
def test_cheap(k):
    pass

def test_dear():
    burn(0.8)

@pytest.mark.cpu(5, "it is what the budget is tested with")
def test_worth_it():
    burn(0.4)
"""
CONFTEST = """
import support.budget as budget
budget.TEST, budget.SUITE, budget.HEAVY, budget.REFERENCE = 0.2, {suite}, (), {reference}
pytest_plugins = ["support.budget"]
"""


def run(folder: Path, suite: float, tests: str = TESTS, reference: float = 1e9, **environment: str) -> tuple[int, str]:
    """Exit code and output of a suite of its own, in a process of its own."""
    (folder / "conftest.py").write_text(CONFTEST.format(suite=suite, reference=reference))
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow\n    cpu\naddopts = -m 'not slow' -p no:cacheprovider\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HIERFL_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore"], cwd=folder, capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def section(output: str) -> list[str]:
    """Lines of the budget's section, from its head."""
    lines = output.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.strip("-") == " CPU seconds "]
    return lines[at:]


EXCEEDED = ": EXCEEDED, the quick set is over its budget (tests/support/budget.py)"


def test_a_test_that_takes_too_long_fails_and_one_that_says_why_does_not(tmp_path: Path) -> None:
    code, output = run(tmp_path, suite=1e6)
    assert code == 1
    assert "1 failed, 52 passed" in output
    assert "CPU seconds of 0.2: make it cheaper, or say why it is worth more" in output
    assert output.count("(0.2) test_it.py::test_dear") == 1  # the dearest are printed


def test_a_suite_that_takes_too_long_fails_though_every_test_passes(tmp_path: Path) -> None:
    cheap = TESTS.replace("burn(0.4)", "burn(0.01)").replace("burn(0.8)", "burn(0.01)")
    code, output = run(tmp_path, suite=0.1, tests=cheap)
    assert code == 1
    assert "53 passed" in output
    assert section(output)[1].endswith(EXCEEDED)
    code, output = run(tmp_path, suite=0.1, tests=cheap, HIERFL_TEST_BUDGET="off")
    assert code == 0
    assert section(output)[1].endswith("of 0.1); not judged: HIERFL_TEST_BUDGET=off")


def test_the_sum_is_judged_where_a_test_fails_too(tmp_path: Path) -> None:
    """It comes first in its section, which is after the list of failed tests."""
    code, output = run(tmp_path, suite=0.1, tests="def test_it():\n    assert False\n")
    assert code == 1
    assert "1 failed" in output
    head, first, *_ = section(output)
    assert "CPU seconds" in head
    assert " of 0 CPU seconds (1.00 times the reference machine's seconds: " in first
    assert first.endswith(EXCEEDED)
    assert output.index("FAILED test_it.py::test_it") < output.index(head)
    code, output = run(tmp_path, suite=1e6, tests="def test_it():\n    assert False\n")
    assert code == 1
    assert section(output)[1].endswith("of 1e+06)")


def test_slow_tests_have_no_common_budget() -> None:
    assert sum_of_all(9e9, 1.0, whole=False, judged=True).endswith("slow tests have no common budget")
    assert sum_of_all(2 * SUITE, 2.0, whole=True, judged=True).endswith(f"{SUITE:g} of {SUITE:g})")


def test_a_slow_machine_has_more(tmp_path: Path) -> None:
    """One on which the loop of fixed work takes many times as long."""
    code, output = run(tmp_path, suite=1e6, reference=1e-4)
    assert code == 0, output
    assert not over(1.5 * SUITE, 2.0)
    assert over(1.01 * SUITE, 1.0)
    assert "twice" not in too_dear(3.0, TEST, 1.0)
    assert "2.50 times as slow" in too_dear(6.0, TEST, 2.5)


def test_a_marker_says_why(tmp_path: Path) -> None:
    code, output = run(tmp_path, suite=1e6, tests=TESTS.replace(', "it is what the budget is tested with"', ""))
    assert code != 0
    assert "pytest.mark.cpu takes seconds, and why they are needed" in output


def test_shared_work_counts_for_the_run_and_not_for_the_test() -> None:
    budget = Budget()
    work = budget.call(_Item())  # type: ignore[arg-type]
    next(work)
    with budget.shared("a fit"):
        sum(k * k for k in range(2_000_000))
    with pytest.raises(StopIteration):
        work.send(None)
    (shared, _, name), (own, _, test) = budget.tests
    assert name == "shared: a fit"
    assert test == "an item"
    assert shared > 0.05
    assert own < shared / 2


class _Item:
    """A test without a marker."""

    nodeid = "an item"

    def get_closest_marker(self, name: str) -> None:
        """None."""
