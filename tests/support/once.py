"""Work that is done once in a session of tests, whichever worker process comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:  # a plugin of pytest: who imports it first has its asserts as they are written
    from .budget import Budget


class Once:
    """Folders that are filled once.

    Args:
        home: a folder that all worker processes of a session share.
        budget: of this process, where the work's CPU seconds are counted.
    """

    def __init__(self, home: Path, budget: Budget) -> None:
        self.home, self.budget = home / "once", budget
        self.home.mkdir(exist_ok=True)

    def __call__(self, name: str, fill: Callable[[Path], object]) -> Path:
        """The folder of that name; who asks first has it filled, and others wait until it is.

        Args:
            name: of the work, the same in all tests that share it.
            fill: does it, into an empty folder. What it raises is raised here, and the next who asks tries again.
        """
        folder, done = self.home / name, self.home / f"{name}.done"
        with FileLock(self.home / f"{name}.lock"):
            if not done.exists():
                folder.mkdir(parents=True)
                with self.budget.shared(name):
                    fill(folder)
                done.touch()
        return folder
