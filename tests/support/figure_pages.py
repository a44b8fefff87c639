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
        ("forest", "forest_of_clients(schools)"),
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
    "Tables of runs": [
        ("comparison", 'compared(seeds, {"accuracy": "accuracy", "nll": "NLL"}, Path("compared.png"), "seeds")'),
        ("comparison", 'curves(lines, "test accuracy", "Three methods", Path("curves.png"))'),
        ("comparison", 'sensitivity(tried, "w_scale", {"pm_nll": "validation NLL"}, Path("s.png"), "w_scale")'),
        ("comparison", 'cost_curves(costs, Path("cost.png"))'),
    ],
    "Simulation-based calibration": [
        ("ecdf", 'ecdf_differences(Path("ecdf.png"), ["mu", "tau"], at, ecdfs, bounds, [False, True], "200 ranks")'),
    ],
}  # fmt: skip

#: tables and arrays of single calls
MORE = """\
from sklearn.datasets import load_digits
from hierfl.plots.features import embedding
from hierfl.models.any_model.sbc.ranks import band

rng = np.random.default_rng(0)
own, strange = rng.gamma(1, 0.2, 300), rng.gamma(5, 0.25, 300)
counts = rng.integers(1, 30, (20, 10)) * (rng.random((20, 10)) < 0.5)
pixels, labels = (part[:400] for part in load_digits(return_X_y=True))
gains, each = pd.read_csv("runs/compared/table.csv"), pd.read_csv("runs/compared/gains.csv")
methods = {"pfedvem": "runs/digits", "local": "runs/local", "fedavg": "runs/fedavg"}
ours, alone, pooled = (pd.read_csv(f"{folder}/clients.csv", index_col="client") for folder in methods.values())
tests = {name: pd.read_csv(f"{folder}/metrics.csv").query("split == 'test'") for name, folder in methods.items()}
lines = [(name, list(test["round"]), list(test["pm_accuracy"])) for name, test in tests.items()]
costs = pd.concat([test.assign(method=name, split="label-skew:5", seed=0) for name, test in tests.items()])
seeds = pd.DataFrame({"method": 4 * [*methods], "accuracy": rng.normal(0.9, 0.02, 12), "nll": rng.gamma(9, 0.02, 12)})
tried = pd.DataFrame({"group": "epochs=5", "w_scale": [0.1, 0.3, 1, 3], "pm_nll": [0.13, 0.11, 0.1, 0.12]})
at, bounds = np.arange(1, 100) / 100, band(200, 100)
ecdfs = np.stack([(rng.random((200, 1)) ** power < at).mean(0) for power in (1, 2)])
"""

HEAD = """\
# Every figure and its call

`hierfl report RUN` shows these figures. Each figure is a function of tables or draws that returns an axis. With `ax=`
it draws into a figure of yours. Without `ax` the size of a figure grows with the names in it, so that thirty names of
forty letters are legible. With more than thirty clients a figure shows thirty of them, from the largest to the
smallest, or the distribution of all. Figures of several runs, and of `hierfl tune`, `hierfl table` and `hierfl sbc`,
have several axes: their functions write a file.

These runs make the pictures of this page. `schools.csv` is `data()` of [eight schools](gallery/eight_schools.md):

```sh
{commands}```

```python
{setup}```

Some calls take other tables and arrays. Entropies, counts, seeds, settings and ranks are drawn at random here:

```python
{more}```

`python tests/support/figure_pages.py runs` writes this page and its pictures.
"""


def small(figure: Any) -> bytes:
    """A figure as a small png."""
    _names_as_they_are(figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
    picture.seek(0)
    return packed(Image.open(picture))


def packed(picture: Image.Image) -> bytes:
    """A picture as a png of few colours, at most as wide as two panels."""
    written = io.BytesIO()
    picture.thumbnail((840, 2000), Image.Resampling.LANCZOS)
    picture.convert("RGB").quantize(COLOURS).save(written, "PNG", optimize=True)
    return written.getvalue()


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
                with TemporaryDirectory() as scratch:
                    code = call.replace('"runs/', f'"{local}/').replace('Path("', f'Path("{scratch}/')
                    drawn = eval(code, {**names, name: function, "Path": Path})
                    if isinstance(drawn, Path):
                        picture = packed(Image.open(drawn))
                    else:
                        assert drawn.get_figure().get_gid() == GROWS
                        picture = small(drawn.get_figure())
                write_whole(DOCS / "figures" / f"{stem}.png", picture)
                plt.close("all")
            path = "from pathlib import Path\n\n" if "Path(" in call else ""
            code = f"{path}from hierfl.plots.{module} import {name}\n\n{call}"
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
