"""The page of all figures, docs/figures.md, from finished runs: each figure with the call that draws it.

    python tests/support/figure_pages.py RUNS
    python tests/support/figure_pages.py --readme RUN

RUNS has the folders that the page's own commands make: digits, local, fedavg, compared, chains, counties, schools.
With --readme it is README's picture instead, of a run of `hierfl run pfedvem`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from hierfl import load_run
from hierfl.files import write_whole
from hierfl.plots import registry
from hierfl.plots.legible import GROWS
from hierfl.plots.run import panels
from hierfl.plots.saving import _names_as_they_are, save_all
from hierfl.plots.style import styled

DOCS = Path(__file__).parents[2] / "docs"
#: pixels for an inch, and colours of a picture: the page stays small
DPI, COLOURS = 80, 48
#: figures of README's picture
README = ("rounds", "sizes", "reliability", "confidence")

COMMANDS = """\
hierfl run pfedvem --rounds 12 --out runs/digits
hierfl run local --rounds 12 --out runs/local
hierfl run fedavg --rounds 12 --out runs/fedavg
hierfl compare runs/digits runs/local runs/fedavg --out runs/compared
hierfl run fedpop -J 8 --rounds 6 --participation 0.6 --network linear \\
    --set chains=4 --set final_steps=60 --set final_keep=30 --out runs/chains
hierfl run mixed-effects --data radon-like --test-fraction 0.2 --set draws=200 --out runs/counties
hierfl run docs/gallery/eight_schools.py --data schools.csv --group school --out runs/schools
"""

#: what the calls name, as a user would write it
SETUP = """\
import numpy as np
import pandas as pd
import hierfl
from hierfl.arviz_io import read

run = hierfl.load_run("runs/digits")  # twenty clients, digits
draws = run.posterior()
counties = read("runs/counties/posterior.nc")  # a mixed model of 85 counties
chains = read("runs/chains/posterior.nc")  # four Langevin chains
schools = read("runs/schools/posterior.nc")  # a plain Pyro model
"""

#: heading: (module, call) of its figures; the function is what a call begins with
CALLS: dict[str, list[tuple[str, str]]] = {
    "Over rounds": [
        ("training", "metric_over_rounds(run.metrics)"),
        ("training", "movement(run.metrics)"),
        ("training", 'bound_over_rounds(pd.read_csv("runs/schools/trace.csv"))'),
        ("densities", 'densities(run.history, "tau")'),
        ("densities", 'densities(run.history, "deviation")'),
    ],
    "Clients": [
        ("clients", "metric_by_size(run.clients)"),
        ("clients", "metric_by_client(run.clients)"),
        ("clients", "size_histogram(run.clients)"),
        ("clients", 'column_by_size(run.clients, "tau", "confidence $\\\\tau_j$")'),
        ("clients", "confidence_by_deviation(run.clients)"),
        ("clients", "entropy_histograms([(own, strange), (own, strange)])"),
        ("share_bubbles", "share_bubbles(counts)"),
    ],
    "Calibration": [
        ("calibration", "reliability(run.reliability(), averaged=run.reliability(averaged=True))"),
        ("calibration", "client_reliability(run.reliability(), names=list(run.clients.client))"),
    ],
    "Population and clients": [
        ("forest", "forest(draws)"),
        ("mixed", 'caterpillar(pd.read_csv("runs/counties/clients.csv"), "Intercept", sd=0.29, upper=0.40)'),
        ("mixed", 'shrinkage(pd.read_csv("runs/counties/estimates.csv"), "Intercept")'),
        ("mixed", 'normal_quantiles(pd.read_csv("runs/counties/clients.csv"), "Intercept")'),
        ("pairs", "pairs(schools)"),
    ],
    "Chains": [
        ("chains", "rhat_and_ess(chains)"),
        ("chains", "trace(chains)"),
        ("chains", "rank(chains)"),
        ("chains", "ess_evolution(chains)"),
    ],
    "Posterior-predictive checks": [
        ("predictive", "predictive_check(draws)"),
        ("predictive", "predictive_check_by_client(draws)"),
        ("predictive", 'predictive_check(counties)'),
        ("predictive", 'residuals(counties)'),
    ],
    "Features": [("features", 'feature_map(embedding(pixels), labels, "class")')],
    "Who reported when": [
        ("training", 'who_reported(pd.read_csv("runs/chains/participation.csv", index_col="round"))'),
    ],
    "Cost": [("training", 'metric_over_bytes(pd.read_csv("runs/chains/metrics.csv"))')],
    "Gains": [
        ("gains", 'gain_intervals(gains[gains["metric"] == "accuracy"], "accuracy, pp")'),
        ("gains", 'three_ways(ours, alone, pooled, "accuracy", "accuracy", "pfedvem")'),
    ],
    "Who gains": [
        ("gains", 'gain_by_size(each[each["over"] == each["over"].iloc[0]], "accuracy", "gain in accuracy, pp")'),
    ],
}  # fmt: skip

#: tables and arrays of single calls
MORE = """\
from sklearn.datasets import load_digits
from hierfl.plots.features import embedding
rng = np.random.default_rng(0)
own, strange = rng.gamma(1, 0.2, 300), rng.gamma(5, 0.25, 300)
counts = rng.integers(1, 30, (20, 10)) * (rng.random((20, 10)) < 0.5)
pixels, labels = (part[:400] for part in load_digits(return_X_y=True))
gains, each = pd.read_csv("runs/compared/table.csv"), pd.read_csv("runs/compared/gains.csv")
ours, alone, pooled = (pd.read_csv(f"runs/{n}/clients.csv", index_col="client") for n in ("digits", "local", "fedavg"))
"""

HEAD = """\
# Every figure and its call

`hierfl report RUN` shows these figures. Each figure is a function of tables or draws that returns an axis. With `ax=`
it draws into a figure of yours. Without `ax` the size of a figure grows with the names in it, so that thirty names of
forty letters are legible. With more than thirty clients a figure shows thirty of them, from the largest to the
smallest, or the distribution of all.

These runs make the pictures of this page. `schools.csv` is `data()` of [eight schools](gallery/eight_schools.md):

```sh
{commands}```

```python
{setup}```

Some calls take other tables and arrays. Entropies and counts are drawn at random here:

```python
{more}```

`python tests/support/figure_pages.py runs` writes this page and its pictures.
"""


def small(figure: Any) -> bytes:
    """A figure as a small png."""
    _names_as_they_are(figure)
    picture, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
    picture.seek(0)
    Image.open(picture).convert("RGB").quantize(COLOURS).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def caption(function: Any, call: str) -> str:
    """The figure's caption in a report, of several that of the call's column; else the first line of its function."""
    known = [figure for figure in registry.FIGURES if figure.draw is function and figure.caption]
    of_call = [figure for figure in known if f'"{figure.name.rpartition("-")[2]}"' in call]
    return (
        (of_call or known)[0].caption
        if known
        else str(function.__doc__).split("\n", 1)[0].removesuffix("; the axis.").removesuffix(".") + "."
    )


def main(runs: Path) -> None:
    """Draws all, and writes the page."""
    from importlib import import_module

    names: dict[str, Any] = {}
    local = str(runs.resolve())
    exec((SETUP + MORE).replace('"runs/', f'"{local}/'), names)
    parts, used = [HEAD.format(commands=COMMANDS, setup=SETUP, more=MORE)], dict[str, int]()
    for heading, calls in CALLS.items():
        parts.append(f"\n## {heading}\n")
        for module, call in calls:
            name = call.partition("(")[0]
            function = getattr(import_module(f"hierfl.plots.{module}"), name)
            used[name] = used.get(name, 0) + 1
            stem = name.replace("_", "-") + (f"-{used[name]}" if used[name] > 1 else "")
            with styled() as plt:
                ax = eval(call.replace('"runs/', f'"{local}/'), {**names, name: function})
                assert ax.get_figure().get_gid() == GROWS
                write_whole(DOCS / "figures" / f"{stem}.png", small(ax.get_figure()))
                plt.close("all")
            code = f"from hierfl.plots.{module} import {name}\n\n{call}"
            text = caption(function, call)
            parts.append(f"\n### `{name}`\n\n{text}\n\n```python\n{code}\n```\n\n![{name}](figures/{stem}.png)\n")
    write_whole(DOCS / "figures.md", "".join(parts).encode())


def readme(folder: Path) -> None:
    """Draws README's picture: four figures of a run."""
    run = load_run(folder)
    averaged = run.reliability(averaged=True)
    every = panels(run.metrics, run.clients, run.reliability(), averaged=averaged, history=run.history)
    with TemporaryDirectory() as scratch:
        save_all(Path(scratch), {name: every[name] for name in README}, "", "all")
        picture, packed = Image.open(Path(scratch) / "all.png").convert("RGB"), io.BytesIO()
        picture.quantize(COLOURS).save(packed, "PNG", optimize=True)
    write_whole(DOCS / "images" / "overview.png", packed.getvalue())


if __name__ == "__main__":
    if sys.argv[1] == "--readme":
        readme(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
