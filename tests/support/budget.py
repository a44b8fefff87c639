"""A budget of CPU seconds: of every test, and of all of them together.

A test may take two CPU seconds where it is called, or what ``@pytest.mark.cpu(SECONDS, "why")`` says. What all tests of
the quick set take, imports and collection included, is added up over the workers, and a run above :data:`SUITE` fails.
The sum is the first line of the report's last section, with its limit, and is judged where a test has failed, too.
Seconds are those of the process and of the children that it has waited for. A loop of fixed work, timed in the same
run, says how much slower a machine is than the one on which the budgets were set; on a slow machine they are larger.

``HIERFL_TEST_BUDGET=off`` judges nothing, and prints all the same. ``HIERFL_TEST_SECONDS=FILE`` writes what every test
took as json.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: CPU seconds of a test, of a slow one, of the quick set
TEST, SLOW, SUITE = 2.0, 180.0, 1500.0
#: how far a single test may be over: the same work has taken three times as many CPU seconds in one run as in another,
#: beside a neighbour on the same core and with cold caches; what creeps in below that is in the sum of all tests
NOISE = 3.0
#: CPU seconds of :func:`loop` on the machine on which these were set
REFERENCE = 0.0227
#: tests of a run below which single tests are not judged: the first of few tests has the imports of all
FEW = 50
#: names of all slow tests, parameters left out, where the whole suite was collected: {name: how many cases}
SLOW_TESTS = pytest.StashKey[dict[str, int]]()
#: CPU seconds between two measurements of the machine's speed: what it is before the first test and after the last is
#: not what it was between them, beside other workers and neighbours
BETWEEN = 15.0
#: how many of the dearest are printed
DEAREST = 10
#: what tests import somewhere, and what would be the cost of the first that does
HEAVY = ("arviz", "matplotlib.pyplot", "sklearn.datasets", "torchvision", "formulae", "scipy.optimize", "hypothesis")


def spent() -> float:
    """CPU seconds of this process and of its children so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def loop() -> float:
    """CPU seconds of a fixed piece of work."""
    start, table = time.process_time(), {}
    for k in range(300_000):
        table[k & 1023] = (k * k) % 1009
    return time.process_time() - start


def slowness() -> float:
    """How many times as long as on the reference machine the same work takes, at least 1."""
    return max(1.0, sorted(loop() for _ in range(3))[1] / REFERENCE)


def limit_of(item: pytest.Item) -> float:
    """CPU seconds that a test may take on the reference machine.

    Raises:
        UsageError: for a marker that does not say why.
    """
    marker = item.get_closest_marker("cpu")
    if marker is None:
        return SLOW if item.get_closest_marker("slow") else TEST
    if len(marker.args) != 2 or not isinstance(marker.args[1], str) or not marker.args[1].strip():
        raise pytest.UsageError(f"{item.nodeid}: pytest.mark.cpu takes seconds, and why they are needed")
    return float(marker.args[0])


class Budget:
    """What one process has spent.

    Attributes:
        tests: (CPU seconds, CPU seconds allowed, name) of each test's call and of each piece of shared work.
        judging: whether a test that takes too long fails.
    """

    def __init__(self) -> None:
        self.tests: list[tuple[float, float, str]] = []
        self.judging = False
        self.slowness = slowness()
        self.measured: list[float] = [self.slowness]
        self._shared = self._last = 0.0

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Work that a test does for others too: it counts for the whole run, and not for the test."""
        start, before = spent(), self._shared
        yield
        taken = spent() - start
        self._shared = before + taken
        self.tests.append((taken, SLOW, f"shared: {name}"))

    def call(self, item: pytest.Item) -> Iterator[None]:
        """Around a test's call."""
        start, self._shared = spent(), 0.0
        result = yield
        taken, limit = spent() - start - self._shared, limit_of(item)
        self.tests.append((taken, limit, item.nodeid))
        if spent() - self._last > BETWEEN:
            self.measured.append(slowness())
            self._last = spent()
        if self.judging and taken > limit * self.slowness * NOISE:
            self.slowness = max(self.slowness, slowness())  # the machine may have become slower
            if taken > limit * self.slowness * NOISE:
                pytest.fail(too_dear(taken, limit, self.slowness), pytrace=False)
        return result

    def report(self) -> dict[str, Any]:
        """What the controller is told."""
        self.measured.append(slowness())
        mean = sum(self.measured) / len(self.measured)
        return {
            "total": spent(), "slowness": max(self.slowness, self.measured[-1], mean),
            "tests": sorted(self.tests, reverse=True),
        }  # fmt: skip


def too_dear(taken: float, limit: float, slowness: float) -> str:
    """One line on a test that is over its budget."""
    machine = f", on a machine {slowness:.2f} times as slow as the reference" if slowness > 1 else ""
    return (
        f"took {taken:.2f} CPU seconds of {limit:g}{machine}: make it cheaper, or say why it is worth more with "
        "@pytest.mark.cpu(SECONDS, WHY) (tests/support/budget.py)"
    )


def over(total: float, slowness: float) -> bool:
    """Whether the quick set has taken more than it may."""
    return total > SUITE * slowness


def sum_of_all(total: float, slowness: float, *, whole: bool, judged: bool) -> str:
    """One line on all tests together: what they took, what they may take, and whether that is too much.

    Args:
        total: CPU seconds of all processes.
        slowness: of the machine.
        whole: whether tests of the quick set ran; slow tests have no common budget.
        judged: whether the budget counts.
    """
    machine = f"{slowness:.2f} times the reference machine's seconds"
    if not whole:
        return f"{total:.0f} CPU seconds ({machine}); slow tests have no common budget"
    line = f"{total:.0f} of {SUITE * slowness:.0f} CPU seconds ({machine}: {total / slowness:.0f} of {SUITE:g})"
    if not judged:
        return f"{line}; not judged: HIERFL_TEST_BUDGET=off"
    if over(total, slowness):
        return f"{line}: EXCEEDED, the quick set is over its budget (tests/support/budget.py)"
    return line


class Plugin:
    """The hooks, in a worker, in a controller, or in the one process that is both.

    Args:
        config: of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.budget = config, Budget()
        self.reports: list[dict[str, Any]] = []
        self.off = os.environ.get("HIERFL_TEST_BUDGET") == "off"

    @property
    def whole(self) -> bool:
        """Whether the quick set is what runs, or a part of it: slow tests have no common budget."""
        return self.config.option.markexpr == "not slow"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Remembers the slow tests before they are left out."""
        if config.args == [str(config.rootpath / path) for path in config.getini("testpaths")] or (
            config.args == config.getini("testpaths")
        ):
            slow = [item.nodeid.partition("[")[0] for item in items if item.get_closest_marker("slow")]
            config.stash[SLOW_TESTS] = dict(Counter(slow))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Imports what is dear once, before a test pays for it."""
        if len(session.items) > FEW:
            for name in HEAVY:
                importlib.import_module(name)
            self.budget.judging = not self.off

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """A test's call has a budget."""
        return (yield from self.budget.call(item))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker has spent."""
        self.reports += [node.workeroutput["budget"]] if "budget" in getattr(node, "workeroutput", {}) else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Sends what was spent, or judges it."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["budget"] = self.budget.report()
            return
        alone = not self.reports  # a controller's children are workers, which have said what they spent
        self.reports.append({**self.budget.report(), **({} if alone else {"total": time.process_time()})})
        if self.exceeded and not exitstatus:  # of a run in which a test failed the status is not zero already
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def total(self) -> float:
        """CPU seconds of all processes."""
        return sum(report["total"] for report in self.reports)

    @property
    def slowness(self) -> float:
        """Of the machine, over the processes."""
        return sum(report["slowness"] for report in self.reports) / len(self.reports)

    @property
    def exceeded(self) -> bool:
        """Whether the tests took more than the quick set may, be a test failed or not."""
        return self.whole and not self.off and over(self.total, self.slowness)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        """The common budget, and the dearest tests: after the list of failed tests, where it is seen."""
        yield
        if not self.reports:
            return
        terminalreporter.write_sep("-", "CPU seconds")
        terminalreporter.write_line(
            sum_of_all(self.total, self.slowness, whole=self.whole, judged=not self.off), red=self.exceeded
        )
        tests = sorted((tuple(test) for report in self.reports for test in report["tests"]), reverse=True)
        if len(tests) > FEW:
            terminalreporter.write_line("the dearest, in CPU seconds (allowed):")
            for taken, limit, name in tests[:DEAREST]:
                terminalreporter.write_line(f"  {taken:7.2f} ({limit:g}) {name}")
        if file := os.environ.get("HIERFL_TEST_SECONDS"):
            Path(file).write_text(json.dumps({name: round(taken, 3) for taken, _, name in tests}, indent=0) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the budget of this process."""
    config.pluginmanager.register(Plugin(config), "budget")
