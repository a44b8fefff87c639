"""Lists of what there is are there at once: none of them imports torch; and no fit imports torch's compiler."""

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


FIT = """
import sys
import numpy
from hierfl import Federation
from hierfl.inference import fit
from hierfl.models import {method}
from hierfl.nn.networks.build import architecture

x = numpy.random.default_rng(0).normal(size=(60, 2))
federation = Federation.from_arrays(x, x[:, 0] > 0, [f"client {{j % 3}}" for j in range(60)])
fit({method}(architecture("linear", federation)), federation, rounds=1, progress=False)
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedAvg", "FedPop"])
def test_a_fit_needs_no_compiler(method: str) -> None:
    """By gradient descent, and by Adam: the import takes longer than many a fit."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIT.format(method=method)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
