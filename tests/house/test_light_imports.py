"""Lists of what there is are there at once: none of them imports torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "hierfl.data.datasets.registry", "hierfl.data.partition.registry", "hierfl.data.tables",
        "hierfl.metrics.registry", "hierfl.metrics.paired", "hierfl.plots.registry",
        "hierfl.responses.registry",
    ],
)  # fmt: skip
def test_lists_need_no_torch(name: str) -> None:
    code = f"import sys, {name}; print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
