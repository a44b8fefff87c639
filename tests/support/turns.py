"""Rounds of two checkouts in turns: how much slower one is than the other, whatever else the machine does.

    python tests/support/turns.py PYTHON_A PYTHON_B [SETTING ...] [--repeats N]

Each interpreter has its own checkout installed. Both prepare the same benchmark (``hierfl bench``'s), then they take
rounds in turns, B before A in every other pair. Printed are the medians of the rounds' wall and processor seconds, and
of the ratios B / A, pair by pair.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from typing import Any

#: where a benchmark is prepared, before and after
HOMES = (("hierfl.experiments.bench.settings", "choose_setting"), ("hierfl.experiments.bench", "choose"))
SETTINGS = ("fashion-mnist", "fashion-mnist-fedrep")


def worker(setting: str) -> None:
    """Takes a round for each line that it reads, and says what it took."""
    for home, choose in HOMES:
        try:
            module: Any = importlib.import_module(home)
        except ModuleNotFoundError:
            continue
        if hasattr(module, choose):
            break
    from hierfl.experiments import cli  # noqa: F401  # both processes import the same

    fit = module.prepare(getattr(module, choose)(setting))
    print(json.dumps({"ready": module.__file__}), flush=True)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        fit.step()
        spent = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
        print(json.dumps(spent), flush=True)


class Contestant:
    """A process of one checkout."""

    def __init__(self, python: str, setting: str) -> None:
        command = [python, __file__, "worker", setting]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def round(self) -> dict[str, float]:
        """One more round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()


def compare(a: str, b: str, setting: str, repeats: int) -> None:
    """Prints what rounds of both took."""
    pair = [Contestant(a, setting), Contestant(b, setting)]
    for contestant in pair:
        contestant.round()  # warm
    taken: list[list[dict[str, float]]] = [[], []]
    for turn in range(repeats):
        for k in (0, 1) if turn % 2 == 0 else (1, 0):
            taken[k].append(pair[k].round())
    for contestant in pair:
        contestant.process.stdin.close()  # type: ignore[union-attr]
        contestant.process.wait()
    for kind in ("wall", "processor"):
        first, second = ([seconds[kind] for seconds in rounds] for rounds in taken)
        ratios = [y / x for x, y in zip(first, second, strict=True)]
        print(
            f"{setting}: {kind} seconds a round: A {statistics.median(first):.3f}, B {statistics.median(second):.3f}; "
            f"B / A: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}"
        )


def main() -> None:
    """See the module."""
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    for setting in options.settings:
        compare(options.a, options.b, setting, options.repeats)


if __name__ == "__main__":
    main()
