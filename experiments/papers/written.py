"""A table as markdown, LaTeX, csv and json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hierfl.inference.method.settings import applicable
from hierfl.plurals import counted

from ..methods import known_class
from ..run_folder.csv_files import write_rows
from ..run_folder.files import write_text
from .definition import Table
from .differences import SCORES, TESTED, in_words
from .seen_runs import write_runs

COLUMNS = (
    "data", "clients", "condition", "method", "model", "ours", "ours_sem", "seeds", "published", "published_sem",
    "difference", "nll", "ece", "draws_nll", "draws_ece", "rounds", "seconds_per_round", "bytes_per_message", "why",
    "explained",
)  # fmt: skip


def write(
    table: Table, rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]], out: Path,
    runs: Sequence[dict[str, Any]] = (),
) -> None:  # fmt: skip
    """table.json, table.csv, table.md, table.tex; differences.csv and runs.csv, where there are claims and runs."""
    out.mkdir(parents=True, exist_ok=True)
    record = {"table": table.name, "title": table.title, "note": table.note, "rows": rows, "differences": claims}
    write_text(out / "table.json", json.dumps(record, indent=1) + "\n")
    write_rows(out / "table.csv", COLUMNS, rows)
    write_text(out / "table.md", markdown(table, rows, claims))
    write_text(out / "table.tex", latex(table, rows, claims))
    if claims:
        write_rows(out / "differences.csv", GAP_COLUMNS, gap_rows(claims))
    if runs:
        write_runs(list(runs), out)


#: of the differences
INTERVALS = (
    f"95 % intervals by Student's t; differences of fewer than {TESTED} seeds are not tested: ± is a standard error."
)
GAP_COLUMNS = ("data", "clients", "condition", "method", "less", "metric", "seeds", "mean", "se", "low", "high")


def head_of(row: Mapping[str, Any]) -> str:
    """The head of the columns of a condition and a number of clients."""
    return ", ".join(filter(None, (f"J = {row['clients']}" if row["clients"] else "", row["condition"])))


def grids(table: Table, rows: Sequence[dict[str, Any]]) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """The grid of each data set: its name, the heads of the columns, and lines of method, model and a cell each."""
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        spots = list(dict.fromkeys((row["clients"], row["condition"]) for row in mine))
        spots.sort(key=lambda spot: spot[0])
        by = {(r["method"], r["model"], r["clients"], r["condition"]): r for r in mine}
        shown = parts(table, rows)
        heads = [", ".join(filter(None, (head_of({"clients": j, "condition": c}), shown[0]))) for j, c in spots]
        columns = [text for head in heads for text in (head, *shown[1:])]
        lines = []
        for method, model in dict.fromkeys((row["method"], row["model"]) for row in mine):
            cells = [text for spot in spots for text in cell(table, by.get((method, model, *spot), {}), len(shown))]
            lines.append([method, model, *cells])
        yield data, columns, lines


def parts(table: Table, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Heads of what is shown of a cell."""
    if table.paper:
        return "ours", "published", "difference"
    if table.runner:
        return ("",)
    return ("", "NLL", "ECE", "NLL of draws")[: 4 if any(row.get("draws_nll") is not None for row in rows) else 3]


def cell(table: Table, row: Mapping[str, Any], many: int = 3) -> tuple[str, ...]:
    """What is shown of a cell: ours, published and difference; beside nothing that was published, ``many`` scores."""
    digits = 1 if abs(row.get("ours") or 100) >= 2 else 3
    ours = number(row.get("ours"), row.get("ours_sem"), digits)
    ours += f" ({row['seeds']})" if ours and table.runner != "sizes" else ""
    if not table.paper:
        return ours, *(number(row.get(key), None, 3) for key in ("nll", "ece", "draws_nll")[: many - 1])
    gap = row.get("difference")
    return ours, number(row.get("published"), row.get("published_sem"), 1), "" if gap is None else f"{gap:+.1f}"


def number(value: float | None, error: float | None, digits: int) -> str:
    """Mean ± standard error."""
    if value is None:
        return ""
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def markdown(table: Table, rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]] = ()) -> str:
    """A grid for each data set, differences between methods, how methods were run, and why cells are empty."""
    lines = [table.title, ""]
    for data, columns, body in grids(table, rows):
        lines += [f"| {data} | | {' | '.join(columns)} |", "|---|---|" + "---:|" * len(columns)]
        lines += [f"| {' | '.join(line)} |" for line in body]
        lines.append("")
        ran = {row["method"]: row for row in rows if row["data"] == data and "setting" in row}
        lines += [_how(method, row) for method, row in ran.items()]
        lines += [""] if ran else []
    lines += [_legend(table), ""] if rows and not table.paper and not table.runner else []
    if claims:
        heads, body = claim_grid(claims)
        lines += [f"| {' | '.join(heads)} |", "|---|---|---:|" + "---:|" * (len(heads) - 3)]
        lines += [*(f"| {' | '.join(line)} |" for line in body), "", f"({INTERVALS})", ""]
    reasons: dict[str, int] = {}
    for row in rows:
        if row.get("why", "not run") != "not run":
            reasons[f"{row['data']}: {row['why']}"] = reasons.get(f"{row['data']}: {row['why']}", 0) + 1
    lines += [f"Not run: {why} ({counted(many, 'number')})." for why, many in reasons.items()] + [""] * bool(reasons)
    return "\n".join([*lines, table.note, ""])


def _how(method: str, row: Mapping[str, Any]) -> str:
    """How a method was run (seconds a round are in table.csv: the text is the same however often it was stopped)."""
    settings = row["setting"]["settings"]
    cls = known_class({**row["setting"]["run"], "method_digest": row["method_digests"][0]})
    if cls is not None and settings.keys() <= {field.name for field in fields(cls.Settings)}:
        settings = applicable(cls, settings)  # of a fixed prior, for one, its learned spread says nothing
    values = f" ({', '.join(f'{k}={v}' for k, v in settings.items())})" if settings else ""
    chosen = row["settings_chosen"] or "its defaults, not searched on this data set"
    mixed = "; runs of different versions of its file" if len(row["method_digests"]) > 1 else ""
    cost = f"{row['rounds']} rounds, {row['bytes_per_message'] / 1e3:,.0f} kB a message"
    return f"- {method}: {cost}; {chosen}{mixed}{values}"


def _legend(table: Table) -> str:
    """What the numbers of a table without published ones are."""
    metrics = ", ".join(f"{name} is {metric}" for name, metric in table.metrics.items())
    return (
        f"(Test data after the last round, mean ± standard error (seeds): {metrics}; accuracies in percent. PM are the "
        "personal models, averaged over clients, GM is the global one; NLL and ECE are at the posterior mean.)"
    )


def claim_grid(claims: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads, and a line for each difference."""
    names = list(dict.fromkeys(name for gap in claims for name in gap["by"]))
    domains = any(gap["domains"] for gap in claims)
    heads = ["difference, paired by seed", "", "seeds", *names, *(["by domain"] if domains else [])]
    body = []
    for gap in claims:
        pair, where = f"{gap['better']} less {gap['worse']}", ", ".join(filter(None, (gap["data"], head_of(gap))))
        cells = [in_words(gap["by"][name], 3 if name in SCORES else 2) if name in gap["by"] else "" for name in names]
        by_domain = ", ".join(f"{name} {number(two[0], two[1], 2)}" for name, two in gap["domains"].items())
        body.append([pair, where, str(len(gap["seeds"])), *cells, *([by_domain] if domains else [])])
    return heads, body


def gap_rows(claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each difference and metric."""
    return [
        {**{k: gap[k] for k in ("data", "clients", "condition")}, "method": gap["better"], "less": gap["worse"],
         "metric": metric, "seeds": len(gap["seeds"]), **numbers}
        for gap in claims for metric, numbers in gap["by"].items()
    ]  # fmt: skip


#: characters that LaTeX reads as commands
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{",
          "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}  # fmt: skip


def escaped(text: str) -> str:
    """Text as LaTeX shows it; a sign before a number is a sign."""
    plain = "".join(_LATEX.get(c, c) for c in text)
    return re.sub(r"(?<![\w.])([+-]\d+(?:\.\d+)?)", r"$\1$", plain)


def latex(table: Table, rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]] = ()) -> str:
    """A tabular for each data set, and one of the differences (package booktabs)."""
    lines = [f"% {' '.join(table.title.split())}", r"% \usepackage{booktabs}"]
    for data, columns, body in grids(table, rows):
        lines += _tabular([data, "", *columns], body, "ll" + "r" * len(columns))
    if claims:
        heads, body = claim_grid(claims)
        lines += [f"% {INTERVALS}", *_tabular(heads, body, "ll" + "r" * (len(heads) - 2))]
    return "\n".join(lines)


def _tabular(heads: Sequence[str], body: Sequence[Sequence[str]], columns: str) -> list[str]:
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(escaped, heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(escaped, line)) + r" \\" for line in body]
    return [*lines, r"\bottomrule", r"\end{tabular}", ""]
