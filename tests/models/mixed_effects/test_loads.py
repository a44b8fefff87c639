"""What a first fit of a process loads: none of what it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import numpy as np, pandas as pd
from hierfl import mixed_model
rng = np.random.default_rng(0)
df = pd.DataFrame({"site": np.repeat(list("abcdef"), 20), "who": np.tile(np.repeat([1, 2, 3, 4], 5), 6)})
df["x"], df["y"] = rng.normal(size=120), rng.poisson(3.0, size=120).astype(float)
before = set(sys.modules)
mixed_model(df, "y ~ x + (1 | site) + (1 | site:who)", draws=10)
for family in ("negative-binomial", "zero-inflated-poisson"):
    mixed_model(df, "y ~ x + (1 | site)", family=family, draws=10)
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before if name.startswith(("sympy", "mpmath"))}))
"""


@pytest.mark.cpu(20, "three fits in a process of their own")
def test_no_fit_loads_sympy() -> None:
    """torch's ``broadcast_shapes`` would, for 0.3 CPU s."""
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
