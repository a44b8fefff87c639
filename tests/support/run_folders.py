"""Small runs, and data for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

#: options of a run on the digits that takes seconds
SHORT = ("--rounds", 2, "--quiet")
#: and of one that takes hardly any time
SMALL = ("-J", 3, "--split", "iid", "--rounds", 2, "--network", "mlp:4", "--quiet")


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
