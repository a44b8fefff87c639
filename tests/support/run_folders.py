"""Small runs, and data for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from support.commands import command
from support.drawing import one_figure
from support.once import Once

#: options of a run on the digits that takes seconds
SHORT = ("--rounds", 2, "--quiet")
#: and of one that takes hardly any time
SMALL = ("-J", 3, "--split", "iid", "--rounds", 2, "--network", "mlp:4", "--quiet")


class Finished:
    """Finished runs on the digits that tests look at, change or go on with: each is made once, and copied.

    Args:
        once: of the session.
    """

    def __init__(self, once: Once) -> None:
        self.once = once

    def __call__(self, method: str, out: Path | str, *more: object, options: tuple[object, ...] = SMALL) -> Path:
        """A copy of a finished run.

        Args:
            method: one of ours.
            out: where the copy is written.
            more: options beside the usual ones.
            options: the usual ones.
        """

        def fill(folder: Path) -> None:
            with one_figure():
                command("run", method, *options, *more, "--out", folder / "run")

        name = "-".join(map(str, ("run", method, *options, *more))).replace("/", "_")
        shutil.copytree(self.once(name, fill) / "run", out)
        return Path(out)


def lines(err: str) -> list[str]:
    """What was said, line by line."""
    return err.splitlines()


def arrays(path: Path, seed: int = 0) -> Path:
    """Writes three clients' Gaussian classes to a file, which is returned."""
    rng = np.random.default_rng(seed)
    y, who = np.arange(90) % 3, np.arange(90) // 30
    x = rng.normal(size=(90, 4)) + y[:, None]
    np.savez(path, x_train=x, y_train=y, client_train=who, x_test=x[::2], y_test=y[::2], client_test=who[::2])
    return path
