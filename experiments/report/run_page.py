"""The page of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.data.formula.references import reference_line
from hierfl.metrics.registry import KINDS, client_metrics
from hierfl.models.mixed_effects.report.printed import ratio_line
from hierfl.plots import registry
from hierfl.plurals import counted
from hierfl.responses.registry import RESPONSES

from ..columns import NETWORK
from ..compare.leave_one_out import MOST_LARGE_K, why_no_loo
from ..config import RunConfig
from ..run_folder.config_file import read_config
from ..run_folder.csv_files import read_frame
from ..run_folder.dp_lines import dp_lines, dp_table
from ..run_folder.files import GLOBAL_COLUMNS, read_effects, read_globals, write_text
from ..run_folder.summary import calibration_lines, ece_lines, fit_warnings, held_rows_line, masked_line, read_summary
from .figures import in_section, pictures_of
from .page import Section, format_value, key_value_rows, render

#: clients in the page's table
MOST_CLIENTS = 2000
#: sections with a text of their own, further down the page
WITH_TEXT = ("Who reported when", "Cost")
#: sections whose pictures have marks of single rows
OF_ROWS = ("Posterior-predictive checks", "Features")
#: options of a run that a plain model has no use for
NOT_OF_MODELS = (
    "draws", "response_sd", "learn_sd", "standardise", "validation_fraction", "evaluate_every", "calibrate",
    "conformal", "final", "network", "clients", "split",
)  # fmt: skip


def write_run_page(folder: Path, *, by_row: bool = True) -> Path:
    """Writes ``report.html`` of a finished run: results, pictures, who reported, cost, configuration, versions.

    Args:
        folder: the run's.
        by_row: whether pictures of single rows are shown.
    """
    config, summary = read_config(folder), read_summary(folder)
    title = f"{summary['method']} on {summary['data']}"
    clients, rounds = (f"{summary[k]} {k if summary[k] != 1 else k[:-1]}" for k in ("clients", "rounds"))
    subtitle = f"{clients}, {summary['split']}, {rounds}, seed {summary['seed']}."
    names = [n for n in client_metrics() if summary.get(f"pm_{n}") is not None]
    rows = []
    best = summary.get("best") or {}
    best = {} if best.get("round") == summary["rounds"] else best
    for when, numbers in (("last round", summary), ("best by validation", best)):
        for kind, what in KINDS.items():
            values = [numbers.get(f"{kind}_{name}") for name in names]
            if any(v is not None for v in values):
                shown = [
                    "" if v is None else format_value(name.removeprefix("draws_"), v)
                    for name, v in zip(names, values, strict=True)
                ]
                rows.append([what, when, *shown])
    pictures, sections = pictures_of(folder), list[Section]()
    if beware := [f"{line[0].upper()}{line[1:]}." for line in fit_warnings(summary)]:
        sections.append(Section("Of the fit", beware))
    if rows:
        notes = [f"{line}." for line in ece_lines(summary)]
        sections.append(Section("Test data", tables=[(["model", "when", *names], rows)], after=notes))
    if lines := [f"{line[0].upper()}{line[1:]}." for line in calibration_lines(summary)]:
        sections.append(Section("Temperature and sets", lines))
    if lines := [f"{line[0].upper()}{line[1:]}." for line in summary.get("advice") or ()]:
        sections.append(Section("What to try", lines))
    if lines := dp_lines(summary):
        sections.append(Section("Differential privacy", lines, tables=[dp_table(summary)]))
    if (folder / "effects.csv").is_file():
        sections.append(
            Section("Effects", tables=[read_effects(folder)], after=_under_effects(summary, config.run.family))
        )
    if summary.get("residual_rows"):
        sections.append(_residuals(summary))
    if (folder / "globals.csv").is_file():
        sections.append(Section("Globals", tables=[(GLOBAL_COLUMNS, read_globals(folder))]))
    if (section_of_clients := _each_client(folder)) is not None:
        sections.append(section_of_clients)
    for heading in registry.sections("run"):
        mine = in_section(pictures, "run", heading)
        if mine and heading not in WITH_TEXT and (by_row or heading not in OF_ROWS):
            sections.append(Section(heading, pictures=mine))
    apart = ("best", "versions", "dropped", "references", "warnings", "held_rows", "dp", "advice")
    said_masked = masked_line(summary).capitalize()
    rest = {k: v for k, v in summary.items() if not k.startswith(("pm_", "gm_")) and k not in apart}
    sections += [
        _leave_one_out(folder),
        Section(
            "Who reported when", _participation_text(folder), pictures=in_section(pictures, "run", "Who reported when")
        ),
        _cost(folder, summary, in_section(pictures, "run", "Cost")),
        Section("Single rows", [held_rows_line(summary), *([f"{said_masked}."] if said_masked else [])]),
        Section("All else that came out", tables=[(["what", "value"], key_value_rows(rest))]),
        Section(
            "Configuration",
            tables=[
                (["option", "value"], key_value_rows(_options(config.run))),
                (["setting", "value"], key_value_rows(config.settings)),
            ],
        ),
        Section("Versions", tables=[(["package", "version"], key_value_rows(summary["versions"]))]),
    ]
    write_text(folder / "report.html", render(title, subtitle, sections))
    return folder / "report.html"


def _each_client(folder: Path) -> Section | None:
    """A row for each client, the largest first; None where there is one client only."""
    path = folder / "clients.csv"
    frame = read_frame(path, ("client",), whole=True) if path.is_file() else None
    if frame is None or len(frame) < 2 or "n" not in frame:
        return None
    every = len(frame)
    if "n_test" in frame and not frame["n_test"].any():  # no test data: a column of zeros says nothing
        frame = frame.drop(columns="n_test")
    frame = frame.sort_values("n", ascending=False, kind="stable").head(MOST_CLIENTS).dropna(axis="columns", how="all")
    rows = [
        [
            "" if isinstance(v, float) and np.isnan(v) else format_value(name.removeprefix("draws_"), v)
            for name, v in zip(frame, row, strict=True)
        ]
        for row in frame.itertuples(index=False, name=None)
    ]
    order = "From the client with the most training rows to the one with the fewest."
    cut = [f"The {len(frame):,} largest of {every:,}; all are in clients.csv."] if len(frame) < every else []
    return Section("Each client", [order, *cut], [(list(frame), rows)])


def _residuals(summary: Mapping[str, Any]) -> Section:
    """Rows of all clients by their quantile residuals."""
    counts = [summary[name] for k in range(1, 101) if (name := f"residuals_{k}") in summary]
    rows = [[f"{k / len(counts):g} to {(k + 1) / len(counts):g}", f"{n:,.0f}"] for k, n in enumerate(counts)]
    text = f"Of each cell {summary['residual_rows'] / len(counts):,.1f} rows are expected where the model holds."
    return Section("Quantile residuals", [text], [(["quantile", "rows"], rows)])


def _options(run: RunConfig) -> dict[str, Any]:
    """Options of a run; of a plain model those that it uses."""
    apart = NOT_OF_MODELS if run.network == NETWORK else ()
    return {name: value for name, value in run.as_table().items() if name not in apart}


def _leave_one_out(folder: Path) -> Section:
    """Leave-one-out of the run's training data, or why there is none."""
    from hierfl.arviz_io import loo, read
    from hierfl.elpd import elpd_value

    if reason := why_no_loo(folder):
        return Section("Leave-one-out", [f"None: {reason}."])
    result = loo(read(folder / "posterior.nc"))
    good_k, p_loo = (float(elpd_value(result, name)) for name in ("good_k", "p"))
    large = float((elpd_value(result, "pareto_k") > good_k).mean())
    text = (
        f"Pareto's k is above {good_k:.2f} for {large:.0%} of the training examples, which importance "
        "sampling cannot leave out"
    )
    if large > MOST_LARGE_K:
        return Section("Leave-one-out", [f"{text}: no sum is shown."])
    rows = [["elpd", f"{elpd_value(result, 'elpd'):.1f}"], ["its standard error", f"{elpd_value(result, 'se'):.1f}"],
            ["p_loo", f"{p_loo:.1f}"]]  # fmt: skip
    if p_loo < 0.05:
        return Section("Leave-one-out", ["None: clients have no latents with any spread, so that nothing is left out."])
    network = read_config(folder).run.network
    if network == NETWORK:  # draws are of the joint posterior
        return Section("Leave-one-out", [f"{text}."], [(["log predictive density", "nats"], rows)])
    table = network == "design"
    optimistic = (
        "Draws of fixed effects and variances have seen the row that is left out: this is a little optimistic."
        if table
        else "Globals are held. The base network and the population saw every example, which makes this optimistic: "
        "rank methods with a network by held-out NLL."
    )
    return Section("Leave-one-out", [f"{text}."], [(["log predictive density", "nats"], rows)], after=[optimistic])


def _reports(folder: Path) -> np.ndarray | None:
    """What every client did, (rounds, J); None for a run from before it was kept."""
    path = folder / "participation.csv"
    return read_frame(path, needs=["round"]).drop(columns="round").to_numpy() if path.is_file() else None


def _participation_text(folder: Path) -> list[str]:
    """Who reported, in words."""
    values = _reports(folder)
    if values is None:
        return ["This run is from before it was kept."]
    if not values.size:
        return ["There were no rounds."]
    if (values == 1).all():
        return [f"All {values.shape[1]} clients in every round."]
    words = {
        2: "messages were rejected", 3: "times an absent client diverged",
        4: "messages may have been rejected: masks show how many were, and not whose",
    }  # fmt: skip
    reported = (values == 1).sum(0)
    lines = [
        f"{(values == 1).sum(1).mean():.1f} clients a round on average, from {(values == 1).sum(1).min()} to "
        f"{(values == 1).sum(1).max()}; a client {reported.min()} to {reported.max()} times in "
        f"{counted(len(values), 'round')}."
    ]
    return lines + [f"{n} {what}." for code, what in words.items() if (n := int((values == code).sum()))]


def _under_effects(summary: Mapping[str, Any], family: str | None) -> list[str]:
    """What the table of effects does not say of itself: reference levels, and the scale."""
    line = reference_line(summary.get("references") or {})
    return [*([f"{line}."] if line else []), *_scale(family)]


def _scale(family: str | None) -> list[str]:
    """The scale of a response's coefficients, where exp of one has a name."""
    response = RESPONSES.get(family or "")
    return [f"{ratio_line(response.ratio).capitalize()}."] if response is not None and response.ratio else []


def _cost(folder: Path, summary: Mapping[str, Any], pictures: Sequence[tuple[str, Path]]) -> Section:
    metrics = read_frame(folder / "metrics.csv", ("split",))
    rows = [["device", str(summary["device"])]]
    if not len(metrics) and summary.get("seconds_per_round"):
        rows.append(["seconds a round", f"{summary['seconds_per_round']:.3f}"])
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
