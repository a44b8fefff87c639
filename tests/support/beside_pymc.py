"""hierfl, PyMC and bambi in one process: a fit that is saved and reported, and bambi's model of the same table.

    pip install hierfl 'pymc>=6' 'bambi>=0.21'
    python -P tests/support/beside_pymc.py

It needs nothing of the checkout but this file. No test runs it. It prints what it compares, and fails where that
differs.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

import arviz
import bambi
import numpy as np
import pandas as pd

import hierfl

#: bambi's draws, chains of 500 after 500
DRAWS, CHAINS = 500, 2
#: how far the two posterior means may be apart, in bambi's posterior sd
APART = 0.35


def table() -> pd.DataFrame:
    """Twelve sites of 20 rows."""
    rng, n = np.random.default_rng(0), 240
    site = np.arange(n) % 12
    x = rng.normal(size=n)
    y = 1 + 0.5 * x + 0.7 * rng.normal(size=12)[site] + rng.normal(size=n)
    return pd.DataFrame({"y": y, "x": x, "site": [f"s{j:02d}" for j in site]})


def main() -> None:
    """Fits, saves, comes back, reports; and compares."""
    for name in ("hierfl", "arviz", "pymc", "pytensor", "bambi", "numpy", "pandas", "xarray", "torch"):
        print(f"{name} {version(name)}")
    df = table()
    fitted = hierfl.mixed_model(df, "y ~ x + (1 | site)", population="bayes")
    posterior = fitted.posterior()
    print(arviz.summary(posterior, var_names=["effects"]).iloc[:, :4])
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(Path(folder) / "fit")
        from hierfl.experiments.cli import app

        df.to_csv(Path(folder) / "rows.csv", index=False)
        run = ["run", "mixed-effects", "--data", f"{folder}/rows.csv", "--formula", "y ~ x + (1 | site)", "--quiet"]
        app([*run, "--out", f"{folder}/run"], standalone_mode=False)
        app(["report", f"{folder}/run", "--quiet"], standalone_mode=False)
        assert (Path(folder) / "run" / "report.html").stat().st_size > 10_000
        again = hierfl.load_run(f"{folder}/run")
        assert len(again.predict(df.head(3))) == 3
    model = bambi.Model("y ~ x + (1 | site)", df)
    theirs = model.fit(draws=DRAWS, tune=DRAWS, chains=CHAINS, cores=1, random_seed=1, progressbar=False)
    ours = fitted.summary().table.set_index("effect")["estimate"]
    for name in ("Intercept", "x"):
        values = theirs.posterior[name].to_numpy().ravel()
        apart = abs(float(ours[name]) - values.mean()) / values.std()
        print(f"{name}: hierfl {float(ours[name]):.3f}, bambi {values.mean():.3f} (sd {values.std():.3f})")
        assert apart < APART, f"{name} differs by {apart:.2f} sd"
    print("all of it in one process")


if __name__ == "__main__":
    main()
