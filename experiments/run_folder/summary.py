"""summary.json: the last round, the best one by validation, and what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hierfl.data.formula.design import Design
from hierfl.data.formula.references import references_of
from hierfl.errors import UserError
from hierfl.inference.run.advice import advice
from hierfl.metrics.registry import KINDS, MIN_TEST_EXAMPLES, client_metrics, global_metrics
from hierfl.models.mixed_effects.report.fit_notes import fit_notes
from hierfl.models.pfedhb.report import part_lines
from hierfl.plurals import counted
from hierfl.schema import AnyOf, Number, Schema, read_json

from .dp_lines import DP_SCHEMA, dp_summary
from .files import versions

if TYPE_CHECKING:
    from hierfl.inference import Run

#: validation examples of all clients together, with fewer of which a temperature is little more than a guess
MIN_CALIBRATION_EXAMPLES = 20
NUMBER_OR_NULL = AnyOf(Number(), None)
SUMMARY_METRICS = (
    *(f"{kind}_{name}" for kind in KINDS for name in (global_metrics() if kind == "gm" else client_metrics())),
    "pm_accuracy_pooled", "pm_ece_pooled", "pm_draws_ece_pooled",
)  # fmt: skip
#: what summary.json must hold
SUMMARY_SCHEMA: Schema = {
    **dict.fromkeys(("method", "device"), str), **dict.fromkeys(("clients", "rounds", "seed"), Number(int, 0)),
    **dict.fromkeys(("data", "split", "federation?", "ood?"), AnyOf(str, None)),
    **dict.fromkeys((f"{name}?" for name in SUMMARY_METRICS), NUMBER_OR_NULL), "seconds_per_round": NUMBER_OR_NULL,
    "dp?": DP_SCHEMA, "best_note?": AnyOf(str, None), "masked?": bool, "warnings?": [str], "dropped?": [str],
    "references?": {"*": str},
    "advice?": [str],
    "held_rows?": AnyOf({"groups": [str], "number": Number(int, 0), "clients": AnyOf(str, [str])}, str),
    "best": AnyOf({"round": Number(int, 0), "*": NUMBER_OR_NULL}, None), "versions": {"*": str}, "*": NUMBER_OR_NULL,
}  # fmt: skip


def summary_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one evaluation under the names of summary.json; what does not apply is null."""
    chosen = {name: row.get(name) for name in SUMMARY_METRICS}
    chosen["worst10_accuracy"], chosen["accuracy_cv"] = (
        row.get("pm_worst10_accuracy"),
        row.get("pm_accuracy_cv"),
    )
    return {k: finite(v) for k, v in chosen.items()}


def finite(value: Any) -> Any:
    """A value as json has it: null for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_summary(
    run: Run,
    name: str,
    report: Mapping[str, float],
    chains: Mapping[str, Any],
    held_rows: Mapping[str, Any] | str,
    *,
    simulated: bool = True,
    again: int = 0,
    own: bool = False,
) -> dict[str, Any]:
    """summary.json: the last round, the best one by validation, and what it took.

    "best" is an earlier round only where validation data tell it from the last, else the last; "best_note" says so.

    Args:
        run: what was fitted.
        name: of the method.
        report: numbers of the method's own.
        chains: how well they mixed, worst first; and how surely strange inputs are noticed.
        held_rows: what the folder holds of single rows (:func:`hierfl.arviz_io.held_rows`).
        simulated: whether the clients were all in this process, not at sites of their own.
        again: how many rounds sites have computed once more after restarts.
        own: whether it is what one site of a study keeps for itself.
    """
    last, best, options, validated = run.last(), run.best(), run.options, run.validated
    federation = run.fitted.federation
    return {
        "method": name,
        **{k: federation.about.get(k) for k in ("data", "split", "redraws")},
        "federation": None if federation.outline else federation.digest(),
        "clients": len(run.ids),
        "rounds": run.rounds,
        "participation": options.participation,
        **({"masked": True} if options.masked else {}),
        "seed": options.seed,
        **summary_metrics(last),
        "best": {"round": best["round"], **summary_metrics(best)} if best else None,
        "best_note": (validated.note or None) if validated else None,
        **({"test_examples_median": _median(federation.sizes("test"))} if simulated and not own else {}),
        **({} if run.coverage is None else {k: finite(v) for k, v in run.coverage.numbers.items()}),
        "warnings": run.warnings,
        **({"advice": advice(run)} if simulated and not own else {}),
        **{k: finite(v) for k, v in report.items()},
        **({"references": references} if (references := _references(run)) else {}),
        **({"dropped": dropped} if (dropped := federation.about.get("dropped")) else {}),
        **{k: finite(v) for k, v in chains.items()},
        **({} if run.calibration is None else {k: finite(v) for k, v in run.calibration.numbers.items()}),
        **({} if run.noise is None else {"dp": dp_summary(run, simulated=simulated and not own, again=again, own=own)}),
        "rejected_messages": last.get("rejected"),
        "skipped_rounds": last.get("skipped"),
        "diverged_local_steps": last.get("diverged"),
        "seconds_per_round": run.seconds / run.rounds if run.rounds else None,
        "device": options.device,
        "held_rows": held_rows,
        "versions": versions(),
    }


def _references(run: Run) -> dict[str, str]:
    """The level of a mixed model that the others of each category are compared with."""
    design = run.fitted.method.network
    return references_of(run.fitted.federation.about, design.fixed) if isinstance(design, Design) else {}


def _median(sizes: Sequence[int]) -> float | None:
    """The median over the clients that have some; None where none has."""
    some = [size for size in sizes if size]
    return median(some) if some else None


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        UserError: if the run has not finished, or the file is damaged.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} has not finished: it has no summary.json; go on with: hierfl run --resume {folder}")
    return read_json(path, SUMMARY_SCHEMA)


def few_tests(summary: Mapping[str, Any]) -> bool:
    """Whether half of the clients have too few test examples for an ECE of their own."""
    return (summary.get("test_examples_median") or MIN_TEST_EXAMPLES) < MIN_TEST_EXAMPLES


def ece_lines(summary: Mapping[str, Any]) -> list[str]:
    """The ECE of all test examples together, where the mean of the clients' own says little; else none."""
    pooled = [
        f"{summary[f'{kind}_ece_pooled']:.3f} {what}"
        for kind, what in (("pm", "at the posterior mean"), ("pm_draws", "averaged draws"))
        if summary.get(f"{kind}_ece_pooled") is not None
    ]
    if not pooled or not few_tests(summary):
        return []
    return [
        f"ECE of all test examples together: {', '.join(pooled)}. Read this one: the table's is the mean of the "
        f"clients' own, and half of the clients have less than {MIN_TEST_EXAMPLES} test examples. On so few even a "
        "calibrated model has a large ECE"
    ]


def calibration_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a calibration has found, in words; none where none was asked for."""
    ece = ("ece_pooled", "ECE of all test examples together") if few_tests(summary) else ("ece", "ECE")
    lines = []
    for kind, what in (("pm", "at the posterior mean"), ("pm_draws", "averaged draws")):
        if summary.get(f"{kind}_temperature") is None:
            continue
        parts = [
            f"{label} {before:.3f}, now {after:.3f}"
            for name, label in (("nll", "NLL"), ece)
            if (before := summary.get(f"{kind}_{name}")) is not None
            and (after := summary.get(f"{kind}_tempered_{name}")) is not None
        ]
        lines.append(
            ": ".join([f"temperature {summary[f'{kind}_temperature']:.3f} {what}", *[", ".join(parts)] * bool(parts)])
        )
    examples = summary.get("calibration_examples", MIN_CALIBRATION_EXAMPLES)
    number = counted(examples, "validation example")
    if lines and examples < MIN_CALIBRATION_EXAMPLES:
        lines.append(
            f"the temperature is from {number} of all clients together, "
            f"which {'determines' if examples == 1 else 'determine'} it poorly: "
            "a larger validation fraction gives more"
        )
    if summary.get("set_alpha") is not None:
        wanted = f"sets that should hold the label in {1 - summary['set_alpha']:.1%}"
        if summary["set_threshold"] >= 1:
            lines.append(f"{wanted}: {number} {'is' if examples == 1 else 'are'} too few, every label stays")
        elif summary.get("set_coverage") is not None:
            worst, unheard = summary["set_coverage_worst10"], summary.get("set_coverage_unheard")
            share_held = f"hold it in {summary['set_coverage']:.1%} (worst tenth of the clients {worst:.1%}"
            share_held += ")" if unheard is None else f", those without validation data {unheard:.1%})"
            lines.append(f"{wanted} {share_held}, {summary['set_size']:.2f} labels each")
    return lines


def masked_line(summary: Mapping[str, Any]) -> str:
    """What the server got of clients, in words; empty without masks."""
    return "masked: the server got sums over clients, and no single message" if summary.get("masked") else ""


def held_rows_line(summary: Mapping[str, Any]) -> str:
    """What a run's folder holds of single rows, in words."""
    record = summary.get("held_rows")
    if record is None:
        return "This run is from before its folder said so; posterior.nc has log likelihoods of single rows."
    if isinstance(record, str):
        return "No file of this folder has an entry for each row."
    whose = "all clients" if record["clients"] == "all" else ", ".join(record["clients"])
    groups = ", ".join(record["groups"])
    return f"posterior.nc has an entry for each of {record['number']} training rows of {whose}: {groups}."


#: chains have mixed where R-hat is at most this, and there are at least so many effective draws (Vehtari et al.,
#: Bayesian Analysis 2021); and hardly at all beyond the others
GOOD_MIXING, POOR_MIXING = (1.01, 400), (1.05, 100)


def fit_warnings(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of a run has to know of its fit: whether it has arrived, whether its chains have mixed."""
    lines = [*(summary.get("warnings") or []), *fit_notes(summary), *part_lines(summary)]
    if summary.get("rhat") is not None:
        rhat, ess = summary["rhat"], summary["ess_bulk"]
        worst = f"chains: R-hat at most {rhat:.3f}, bulk ESS at least {ess:,.0f}"
        if summary.get("ess_bulk_median") is not None:
            worst += f", median {summary['ess_bulk_median']:,.0f}"
        good, bad = rhat <= GOOD_MIXING[0] and ess >= GOOD_MIXING[1], rhat >= POOR_MIXING[0] or ess < POOR_MIXING[1]
        end = "" if good else "they have not mixed; do not trust their draws" if bad else "longer ones would be safer"
        lines.append(f"{worst}: {end}" if end else worst)
    elif summary.get("kept_draws") is not None:
        many = summary["kept_draws"]
        lines.append(f"chains have left {many:.0f} draw{'s' * (many != 1)}: whether they have mixed cannot be said")
    return lines
