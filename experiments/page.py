"""One self-contained page of a run or a comparison: text, tables and pictures in one file, nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import folder as folders
from .csv_files import read_frame

if TYPE_CHECKING:
    from .compare import Comparison

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --paper: #fff; --line: #d9dee3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --quiet: #9aa4ae; --paper: #16191d; --line: #343a41; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { max-width: 46rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; }
figure img { width: 100%; height: auto; background: #fff; border-radius: 6px; border: 1px solid var(--line); }
figcaption { color: var(--quiet); font-size: .85rem; }
"""


@dataclass
class Section:
    """A part of a page.

    Attributes:
        heading: above it.
        text: paragraphs.
        tables: (columns, rows) each.
        pictures: (what it shows, path of a png) each.
        after: paragraphs below.
    """

    heading: str
    text: Sequence[str] = ()
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    pictures: Sequence[tuple[str, Path]] = ()
    after: Sequence[str] = field(default=())


def html(title: str, about: str, sections: Sequence[Section]) -> str:
    """The page."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # (a page without an icon is asked for one)
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>',
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>",
    ]
    for section in sections:
        parts.append(f"<section>\n<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(text)}</p>" for text in section.text]
        for columns, rows in section.tables:
            head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
            body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            parts.append(
                f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
            )
        if section.pictures:
            parts.append('<div class="pictures">')
            for name, path in section.pictures:
                data = base64.b64encode(path.read_bytes()).decode()
                parts.append(
                    f'<figure><img alt="{escape(name)}" src="data:image/png;base64,{data}">'
                    f"<figcaption>{escape(_caption(name, path))}</figcaption></figure>"
                )
            parts.append("</div>")
        parts += [f"<p>{escape(text)}</p>" for text in section.after]
        parts.append("</section>")
    return "\n".join([*parts, "</body>\n</html>\n"])


#: parts of a run's page: heading, and what begins the names of its pictures
PARTS = {
    "Over rounds": ("rounds", "movement", "density"),
    "Clients": ("sizes", "clients", "histogram", "confidence", "entropy"),
    "Calibration": ("reliability",),
    "Population and clients": ("forest", "effects", "shrinkage"),
    "Chains": ("mixing", "trace", "rank", "ess"),
    "Posterior-predictive checks": ("predictive",),
    "Features": ("features",),
}
#: what stands below pictures whose titles do not say it all
CAPTIONS = {
    "rounds": "On the clients' test data, after the rounds that were evaluated.",
    "movement": "How far the values that the server owns moved in a round.",
    "histogram": "How many clients have so many training examples.",
    "confidence": "How much the server believes a client, against the client's size.",
    "confidence-deviation": "How far its model lies from the population's, against how much the server believes it.",
    "entropy": "How unsure every client's model is of its own test data, and of data that it was not made for.",
    "reliability": "Right as often as it says: on the diagonal. The larger a point, the more predictions.",
    "effects": "Of every place, the difference from the fixed effect.",
    "shrinkage": "A client's coefficient by its own data alone, and by the hierarchical model, which shrinks it to the "
    "population's, the more, the fewer rows the client has. Pooled: by all data as one, where clients do not differ.",
    "features": "Test data of all clients in the network's last hidden layer.",
    "participation": "A row for each client, a column for each round.",
    "gain": "Of the first over each other, mean over clients; positive where the first is better.",
    "size": "A point for each client and seed.",
    "three": "Each client's test metric in one seed: of its own model alone, of one model for all, and of the first.",
    "cost": "What has been sent until then.",
    "density-tau": "Share of every client in the sum of all confidences, in some rounds (pFedVEM, Figure 10).",
    "density-deviation": "Distance of every client's model from the population's mean, squared, over how many numbers "
    "it has, in some rounds (pFedVEM, Figure 11).",
    "sizes": "Each client's personal model on its own test data.",
    "reliability-clients": "The worst is the one with the largest ECE, of those with 20 test examples and more.",
    "forest": "The number in which clients differ most, of those the guide has of each: highest-density 90 % and "
    "central half. The population is what a client without data would be given.",
    "mixing": "Each client's number that mixed worst. Weights of a network can be exchanged for others that predict "
    "the same: where R-hat is large, look at predictions before draws.",
    "trace": "The number with the largest R-hat of all.",
    "rank": "Level bars: the chains draw from the same distribution.",
    "ess": "Straight lines: longer chains would give more.",
    "predictive-check": "Training data, which the models have seen: a fit that cannot even draw these is wrong; one "
    "that can may still be.",
    "predictive-check-clients": "Of each client the mean of its training data (of labels: the share of its commonest "
    "one), beside what its own model draws.",
}


def _pictures(folder: Path) -> list[tuple[str, Path]]:
    """The single pictures of a folder; what joins several is left out."""
    found = sorted((folder / "figures").glob("*.png"))
    return [(p.stem.replace("-", " "), p) for p in found if p.stem not in ("overview", "features", "posterior")]


def _caption(name: str, path: Path) -> str:
    """What stands below a picture."""
    return CAPTIONS.get(path.stem) or CAPTIONS.get(path.stem.partition("-")[0]) or name


def _ordered(pictures: Sequence[tuple[str, Path]], starts: Sequence[str]) -> list[tuple[str, Path]]:
    """Those whose names begin so, in this order."""
    return [p for start in starts for p in pictures if p[1].stem.partition("-")[0] == start]


def _value(name: str, value: Any) -> str:
    if isinstance(value, float):
        share = name.endswith(("accuracy", "coverage90", "accuracy_pooled"))
        return f"{value:.1%}" if share else f"{value:.4g}"
    return str(value)


def _flat(table: Mapping[str, Any]) -> list[list[str]]:
    return [[name, _value(name, value)] for name, value in table.items() if value is not None and value != ""]


def of_run(folder: Path) -> Path:
    """Writes ``report.html`` of a finished run: results, pictures, who reported, cost, configuration, versions."""
    config, summary = folders.read_config(folder), folders.read_summary(folder)
    title = f"{summary['method']} on {summary['data']}"
    about = f"{summary['clients']} clients, {summary['split']}, {summary['rounds']} rounds, seed {summary['seed']}."
    kinds = {"pm": "personal, at the posterior mean", "pm_draws": "personal, averaged over draws", "gm": "global"}
    names = [
        n
        for n in ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")
        if summary.get(f"pm_{n}") is not None
    ]
    rows = []
    for when, numbers in (("last round", summary), ("best by validation", summary.get("best") or {})):
        for kind, what in kinds.items():
            values = [numbers.get(f"{kind}_{name}") for name in names]
            if any(v is not None for v in values):
                shown = ["" if v is None else _value(name, v) for name, v in zip(names, values, strict=True)]
                rows.append([what, when, *shown])
    pictures, sections = _pictures(folder), list[Section]()
    if beware := [f"{line[0].upper()}{line[1:]}." for line in folders.told(summary)]:
        sections.append(Section("Of the fit", beware))
    if rows:
        sections.append(Section("Test data", tables=[(["model", "when", *names], rows)]))
    if (folder / "effects.csv").is_file():
        sections.append(Section("Effects", tables=[(folders.EFFECTS, folders.effects(folder))]))
    for heading, starts in PARTS.items():
        mine = _ordered(pictures, starts)
        if mine:
            sections.append(Section(heading, pictures=mine))
    rest = {k: v for k, v in summary.items() if not k.startswith(("pm_", "gm_")) and k not in ("best", "versions")}
    sections += [
        _left_out(folder),
        Section("Who reported when", _reported(folder), pictures=_ordered(pictures, ["participation"])),
        _cost(folder, summary, _ordered(pictures, ["cost"])),
        Section("All else that came out", tables=[(["what", "value"], _flat(rest))]),
        Section(
            "Configuration",
            tables=[(["option", "value"], _flat(config["run"])), (["setting", "value"], _flat(config["settings"]))],
        ),
        Section("Versions", tables=[(["package", "version"], _flat(summary["versions"]))]),
    ]
    folders.write_text(folder / "report.html", html(title, about, sections))
    return folder / "report.html"


def _left_out(folder: Path) -> Section:
    """Leave-one-out of the run's training data, or why there is none."""
    from hierfl.arviz_io import loo, read

    from .compare import TOO_MANY, unfit

    if reason := unfit(folder):
        return Section("Leave-one-out", [f"None: {reason}."])
    found = loo(read(folder / "posterior.nc"))
    large = float((found["pareto_k"] > found["good_k"]).mean())
    text = (
        f"Pareto's k is above {found['good_k']:.2f} for {large:.0%} of the training examples, which importance "
        "sampling cannot leave out"
    )
    if large > TOO_MANY:
        return Section("Leave-one-out", [f"{text}: no sum is shown."])
    rows = [["elpd", f"{found['elpd_loo']:.1f}"], ["its standard error", f"{found['se']:.1f}"],
            ["p_loo", f"{found['p_loo']:.1f}"]]  # fmt: skip
    if found["p_loo"] < 0.05:
        return Section("Leave-one-out", ["None: clients have no latents with any spread, so that nothing is left out."])
    table = folders.read_config(folder)["run"]["network"] == "design"
    optimistic = (
        "Fixed effects and variances are held where the fit, which saw every row, has left them: this is optimistic."
        if table
        else "Globals are held. The base network and the population saw every example, which makes this optimistic: "
        "rank methods with a network by held-out NLL."
    )
    return Section("Leave-one-out", [f"{text}."], [(["log predictive density", "nats"], rows)], after=[optimistic])


def _reports(folder: Path) -> np.ndarray | None:
    """What every client did, (rounds, J); None for a run from before it was kept."""
    path = folder / "participation.csv"
    return read_frame(path, needs=["round"]).drop(columns="round").to_numpy() if path.is_file() else None


def _reported(folder: Path) -> list[str]:
    """Who reported, in words."""
    values = _reports(folder)
    if values is None:
        return ["This run is from before it was kept."]
    if not values.size:
        return ["There were no rounds."]
    if (values == 1).all():
        return [f"All {values.shape[1]} clients in every round."]
    words, each = {2: "messages were dropped", 3: "times a client that was away diverged"}, (values == 1).sum(0)
    told = [
        f"{(values == 1).sum(1).mean():.1f} clients a round on average, from {(values == 1).sum(1).min()} to "
        f"{(values == 1).sum(1).max()}; a client {each.min()} to {each.max()} times in {len(values)} rounds."
    ]
    return told + [f"{n} {what}." for code, what in words.items() if (n := int((values == code).sum()))]


def _cost(folder: Path, summary: Mapping[str, Any], pictures: Sequence[tuple[str, Path]]) -> Section:
    metrics = read_frame(folder / "metrics.csv", ("split",))
    rows = [["device", str(summary["device"])]]
    if len(metrics) and summary["rounds"]:
        sent, seconds = float(metrics["bytes"].iloc[-1]), float(metrics["seconds"].iloc[-1])
        rows += [
            ["seconds in rounds", f"{seconds:.1f}"],
            ["seconds a round", f"{seconds / summary['rounds']:.3f}"],
            ["MB sent by all clients", f"{sent / 1e6:.2f}"],
        ]
        reports = _reports(folder)
        messages = 0 if reports is None or len(reports) < summary["rounds"] else int(np.isin(reports, (1, 2)).sum())
        if messages:
            rows.append(["kB a message", f"{sent / 1e3 / messages:.2f}"])
    return Section("Cost", tables=[(["", ""], rows)], pictures=pictures)


def of_comparison(found: Comparison, folder: Path) -> Path:
    """Writes ``report.html`` of a comparison into its folder."""
    from .compare import heading, path_from, shown

    sections = []
    for name, one in zip(("Gains", "Who gains", "Leave-one-out"), shown(found), strict=False):
        kinds = {"Gains": ("gain", "three"), "Who gains": ("size", "confidence")}.get(name, ())
        pictures = _ordered(_pictures(folder), kinds)
        after = [one.after.strip()] if one.after else []
        sections.append(Section(name, [one.before], [(one.columns, one.rows)], pictures, after))
    runs = [[v.name, str(seed), path_from(folder, run)] for v in found.variants for seed, run in sorted(v.runs.items())]
    sections.append(Section("Runs", tables=[(["", "seed", "folder"], runs)]))
    for v in found.variants:
        sections.append(
            Section(f"Configuration: {v.name}", tables=[(["setting", "value"], _flat(v.setting["settings"]))])
        )
    sections.append(Section("Versions", tables=[(["package", "version"], _flat(folders.versions()))]))
    first = found.variants[0].name
    folders.write_text(folder / "report.html", html(f"{first} against others", heading(found), sections))
    return folder / "report.html"
