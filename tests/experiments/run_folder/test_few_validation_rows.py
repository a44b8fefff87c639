"""A run whose split leaves next to no validation rows says so."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl import Federation
from hierfl.experiments.configure import configure
from hierfl.experiments.run_folder.start import few_validation_rows


@pytest.mark.parametrize(
    ("rows", "of", "words"),
    [
        (8, "classes", "validation data: 0 rows of 48, since only clients with ten rows of a class give some; "
         "--validation-of clients takes about 5"),
        (8, "clients", ""),
        (100, "classes", ""),
    ],
)  # fmt: skip
def test_next_to_no_validation_rows_are_a_line(rows: int, of: str, words: str) -> None:
    n = 6 * rows
    x, y = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32), np.arange(n) % 2
    made = Federation.from_arrays(x, y, np.repeat(np.arange(6), rows), test=0.0, validation=0.1, validation_of=of)
    run = configure("fedavg", "digits", {"validation_fraction": 0.1, "validation_of": of}, {}).run
    assert few_validation_rows(made, run) == words
