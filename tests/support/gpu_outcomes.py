"""What becomes of tests while the check of a GPU runs them, kept test by test: those of a run that is stopped, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.gpu_task import Task


class Outcomes:
    """A plugin of pytest: each test's outcome, kept as it comes.

    Args:
        task: whose figures they are.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.states = task, dict[str, str]()
        self.failures: dict[str, str] = {}
        self.skips = Counter[str]()
        self.slowest: dict[str, float] = {}
        self.collected = 0

    def pytest_collection_finish(self, session: Any) -> None:
        """How many there are, where this process runs them."""
        self.collected = len(session.items)

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Likewise, where workers do."""
        self.collected = len(ids)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be read."""
        if report.failed:
            self._add(report.nodeid, "failed", str(report.longrepr), 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test's set-up, call or end."""
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            if report.skipped and isinstance(report.longrepr, tuple):
                message = report.longrepr[2].removeprefix("Skipped: ")
            self._add(report.nodeid.rpartition("::")[2], report.outcome, message, report.duration)

    def _add(self, name: str, outcome: str, message: str, seconds: float) -> None:
        if self.states.get(name) != "failed":  # a test that has failed may fail at its end, too
            self.states[name] = outcome
        if outcome == "failed":
            self.failures[name] = message
        if outcome == "skipped":
            self.skips[message] += 1
        longest = sorted([*self.slowest.items(), (name, round(seconds, 2))], key=lambda item: -item[1])
        self.slowest = dict(longest[:10])
        counts = Counter(self.states.values())
        self.task.figures |= {
            "tests": self.collected, **{state: counts[state] for state in ("passed", "failed", "skipped")},
            "failures": self.failures, "skips": dict(self.skips), "slowest_seconds": self.slowest,
        }  # fmt: skip
        self.task.keep()
