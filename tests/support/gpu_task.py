"""A part's work in the check of a GPU, and the file in which it keeps what it has found."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierfl.files import write_whole


class Failed(Exception):
    """What was found is not what must hold."""


class NeedsCuda(Exception):
    """There is nothing to be found without a CUDA device."""


@dataclass
class Task:
    """One part's work.

    Attributes:
        part: its name.
        device: where.
        small: whether with tiny sizes.
        record: the file of what was found.
        figures: found so far.
    """

    part: str
    device: str
    small: bool
    record: Path
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        """Whether the device is one."""
        return self.device.startswith("cuda")

    def keep(self, **state: str) -> None:
        """Writes what was found so far; once the part has ended its state and error, too."""
        write_whole(self.record, json.dumps({**state, "figures": self.figures}).encode())

    def short(self, line: str) -> None:
        """A line for whoever waits."""
        self.figures.setdefault("in_short", []).append(line)

    def case(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """One of several pieces of work: what goes wrong in it is kept, and the next one goes on.

        Args:
            name: of the case.
            work: gives figures; "largest_difference" among them must not be above "tolerance".
        """
        result: dict[str, Any] = {"state": "passed"}
        try:
            result |= work()
            if "tolerance" in result:
                result |= judged(result["largest_difference"], result["tolerance"])
        except NeedsCuda as error:
            result |= {"state": "needs cuda", "error": str(error)}
        except Exception as error:
            result |= {"state": "failed", "error": told(error)}
        self.figures.setdefault("cases", {})[name] = result
        self.keep()

    def conclude(self) -> None:
        """Says how the cases went.

        Raises:
            Failed: where one has failed.
            NeedsCuda: where there was nothing but what needs CUDA.
        """
        cases = self.figures["cases"]
        failed = [name for name, result in cases.items() if result["state"] == "failed"]
        if failed:
            names = "; ".join([*failed[:5], *(["..."] if failed[5:] else [])])
            first = cases[failed[0]]["error"].splitlines()[0]
            raise Failed(f"{len(failed)} of {len(cases)} cases failed ({names}), the first: {first}")
        if not any(result["state"] == "passed" for result in cases.values()):
            raise NeedsCuda("there is no case that needs none")


def judged(difference: float, tolerance: float) -> dict[str, Any]:
    """A case's state by its largest difference; one that is no number has failed."""
    if not math.isfinite(difference):  # json has no such number
        return {"state": "failed", "largest_difference": None, "error": "some values are not finite"}
    if difference > tolerance:
        return {"state": "failed", "error": f"the largest difference is {difference:.2g}, above {tolerance:g}"}
    return {}


def told(error: Exception) -> str:
    """An error in one line, and where it was raised below."""
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
