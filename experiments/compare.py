"""`hierfl compare`: one way to fit a federation against others, client by client.

Runs of the same data and split, any number of seeds each. The first run's method is compared with every other: gains in
accuracy, NLL, Brier score and ECE (regression: RMSE, NLL, CRPS, coverage), paired by seed and client, with bootstrap
intervals; who gains, by size; and leave-one-out log predictive densities, where the runs have draws.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl import arviz_io
from hierfl.data.datasets.registry import defaults
from hierfl.errors import UserError
from hierfl.inference.method.settings import applicable, scale_setting
from hierfl.metrics import paired
from hierfl.metrics.registry import MIN_TEST_EXAMPLES

from . import folder as folders
from . import page
from .collect import setting_of
from .csv_files import read_frame, write_frame
from .methods import known_class

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference import Method

#: of a run's configuration, what makes its data and split; the rest may differ, and is told
DATA = ("data", "clients", "split", "validation", "noise", "formula", "client", "family", "error", "test")
#: predictions at the posterior mean, and averaged over draws
KINDS = {"mean": "mean", "draws": "draws"}
#: leave-one-out needs so many draws to see a tail; these metrics MIN_TEST_EXAMPLES test examples of the median client
LEAST_DRAWS, NEEDS_MANY = 100, ("ece", "coverage90")
#: share of large k above which a sum over examples is not shown
TOO_MANY = 0.2
FILES = ("report.html", "comparison.md", "gains.csv", "table.csv", "sizes.csv", "loo.csv")


def make(out: Path | None) -> Path:
    """A fresh folder: ``out``, emptied of an old comparison, or the next numbered one in ./runs."""
    if out is None:
        return folders.make("compare")
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)  # (but for what it is known by)
    shutil.rmtree(out / "figures", ignore_errors=True)
    return out


@dataclass
class Variant:
    """Runs that differ in their seed alone.

    Attributes:
        name: of the method and of what tells it from the others.
        setting: "run" and "settings".
        runs: folders by seed.
        summaries: their summary.json.
        clients: a row for each seed and client, as in clients.csv.
        cls: the method's class; None for somebody's own file, which is not run for a comparison.
    """

    name: str
    setting: dict[str, Any]
    runs: dict[int, Path]
    summaries: dict[int, dict[str, Any]]
    clients: pd.DataFrame
    cls: type[Method] | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return _method(self.setting, self.cls)

    @property
    def telling(self) -> dict[str, Any]:
        """The settings, less those that change nothing beside the others."""
        return _telling(self.setting, self.cls)

    @property
    def random(self) -> bool:
        """Whether the guide is no point."""
        return any(summary.get("pm_draws_nll") is not None for summary in self.summaries.values())

    @property
    def kinds(self) -> dict[str, str]:
        """Predictions there are for each client, {kind: what its columns begin with}: a point is its only draw."""
        if self.random and "draws_nll" not in self.clients:  # (a run from before they were kept)
            return {"mean": ""}
        return {"mean": "", "draws": "draws_" if self.random else ""}


def gather(runs: Sequence[Path]) -> list[Variant]:
    """The variants among some finished runs, in their order.

    Raises:
        UserError: for folders that are no finished runs, the same run twice, or runs of different data or splits.
    """
    import pandas as pd

    groups: list[tuple[dict[str, Any], type[Method] | None, dict[int, Path]]] = []
    configs: dict[Path, dict[str, Any]] = {}
    for run in runs:
        config = folders.read_config(run)
        folders.read_summary(run)  # (not finished? say so first)
        configs[run], seed = config, config["run"]["seed"]
        setting = setting_of(config)
        members = next((m for s, _, m in groups if s == setting), None)
        if members is None:
            groups.append((setting, known_class(config["run"]), members := {}))
        if seed in members:
            raise UserError(f"{members[seed]} and {run} are the same run: same method, settings and seed")
        members[seed] = run
    about = [{k: c["run"].get(k) for k in DATA} for c in configs.values()]
    for run, mine in zip(configs, about, strict=True):
        if other := [k for k in DATA if mine[k] != about[0][k]]:
            k = other[0]
            raise UserError(f"{run} is of other data than {runs[0]}: its {k} is {mine[k]!r}, not {about[0][k]!r}")
    found = []
    for name, (setting, cls, members) in zip(_names([g[:2] for g in groups]), groups, strict=True):
        summaries = {seed: folders.read_summary(run) for seed, run in members.items()}
        frames = [
            read_frame(run / "clients.csv", ("client",), ("client", "n", "n_test")).assign(seed=seed)
            for seed, run in members.items()
        ]
        found.append(Variant(name, setting, members, summaries, pd.concat(frames, ignore_index=True), cls))
    digests: dict[int, str] = {}
    for variant in found:
        for seed, summary in variant.summaries.items():
            digest = summary.get("federation")  # (runs from before it was kept have none)
            if digest and digests.setdefault(seed, digest) != digest:
                raise UserError(f"{variant.runs[seed]} holds other data, or splits them otherwise, than the others")
    return found


def _names(settings: Sequence[tuple[Mapping[str, Any], type[Method] | None]]) -> list[str]:
    """Of variants: the method, its prior, and whatever else tells two of one method apart."""
    names = []
    for mine, cls in settings:
        method, told = _method(mine, cls), _telling(mine, cls)
        others = [s for s, _ in settings if s is not mine and s["run"]["method"] == mine["run"]["method"]]
        prior = f" ({told['prior']} prior)" if "prior" in told else ""
        same = [s for s in others if s["settings"].get("prior") == told.get("prior")]
        apart = {k: told[k] for k in told if any(s["settings"].get(k) != told[k] for s in same)}
        apart |= {k: v for k, v in mine["run"].items() if any(s["run"].get(k) != v for s in same)}
        names.append(", ".join([method + prior, *(f"{k}={v}" for k, v in apart.items())]))
    return names


def _method(setting: Mapping[str, Any], cls: type[Method] | None) -> str:
    """A method's name, or that of its file."""
    return (cls.name if cls is not None else "") or Path(setting["run"]["method"]).stem


def _telling(setting: Mapping[str, Any], cls: type[Method] | None) -> dict[str, Any]:
    return dict(setting["settings"]) if cls is None else applicable(cls, setting["settings"])


def differing(variants: Sequence[Variant]) -> dict[str, list[Any]]:
    """What differs between variants beside method and settings: {name: values}."""
    keys = dict.fromkeys(k for v in variants for k in v.setting["run"])
    told = {k: [v.setting["run"].get(k) for v in variants] for k in keys if k != "method"}
    return {k: values for k, values in told.items() if any(value != values[0] for value in values)}


def pairs(variants: Sequence[Variant]) -> pd.DataFrame:
    """Gains of the first over each other, a row for each seed and client: columns over, kind, seed, client, n, ...

    Raises:
        UserError: where two have no seed in common.
    """
    import pandas as pd

    first, found = variants[0], []
    for other in variants[1:]:
        for kind in KINDS:
            if any(kind not in v.kinds for v in (first, other)) or (
                kind == "draws" and not (first.random or other.random)
            ):
                continue
            columns = {}
            for metric in paired.METRICS:
                names = [v.kinds[kind] + metric for v in (first, other)]
                if all(name in v.clients for name, v in zip(names, (first, other), strict=True)):
                    columns[metric] = (names[0], names[1])
            try:
                gains = paired.gains(first.clients, other.clients, columns)
            except UserError as error:
                raise UserError(f"{first.name} and {other.name} cannot be paired: {error}") from error
            found.append(gains.assign(over=other.name, kind=kind))
    frame = pd.concat(found, ignore_index=True)
    return frame[["over", "kind", *(c for c in frame if c not in ("over", "kind"))]]


def chosen(variants: Sequence[Variant]) -> str:
    """Settings that differ between variants of one method, and the scales of their priors, in words."""
    told = []
    for v, label in zip(variants, labels(variants).values(), strict=True):
        same = [o for o in variants if o.setting["run"]["method"] == v.setting["run"]["method"]]
        own, others = v.telling, [o.telling for o in same if o is not v]
        apart = {k for k in own if k != "prior" and any(o.get(k, own[k]) != own[k] for o in others)}
        if v.cls is not None and any(o.get("prior") != own.get("prior") for o in others):
            apart |= own.keys() & {scale_setting(v.cls, own["prior"])}
        if apart:
            told.append(f"{label} {', '.join(f'{k}={own[k]}' for k in own if k in apart)}")
    return "; ".join(told)


def crossed(variant: Variant) -> bool:
    """Whether a client's name means the same data under every seed."""
    run = variant.setting["run"]
    if defaults(run["data"]).made:
        return False
    return run.get("network") == "design" or run["split"].partition(":")[0] in ("natural", "domains")


def table(gains: pd.DataFrame, crossing: bool) -> pd.DataFrame:
    """Mean gain, interval and share of clients that gain: a row for each pair, kind and metric."""
    import pandas as pd

    rows = []
    for (over, kind), part in gains.groupby(["over", "kind"], sort=False):
        for metric in (m for m in paired.METRICS if m in part and part[m].notna().any()):
            values, clients = part[metric].to_numpy(float), part["client"].to_numpy(str) if crossing else None
            estimate = paired.bootstrap(values, part["seed"].to_numpy(), clients)
            rows.append(
                {
                    "over": over, "kind": kind, "metric": metric, "gain": estimate.mean, "low": estimate.low,
                    "high": estimate.high, "share_better": float(np.mean(values > 0)),
                    "share_worse": float(np.mean(values < 0)), "seeds": part["seed"].nunique(), "pairs": len(part),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def sizes(gains: pd.DataFrame, crossing: bool) -> pd.DataFrame:
    """Who gains: mean gain of the small, middling and large third of the clients, and its rank correlation with n."""
    import pandas as pd

    rows = []
    for (over, kind), part in gains.groupby(["over", "kind"], sort=False):
        third = paired.by_size(part["n"].to_numpy(float))
        for metric in (m for m in ("accuracy", "rmse", "nll") if m in part):
            told = {"over": over, "kind": kind, "metric": metric}
            told["rank_correlation_with_n"] = paired.rank_correlation(part["n"], part[metric])
            for k in np.unique(third):
                mine = part[third == k]
                clients = mine["client"].to_numpy(str) if crossing else None
                estimate = paired.bootstrap(mine[metric].to_numpy(float), mine["seed"].to_numpy(), clients)
                if len(mine) < 4:  # (of so few no interval can be seen)
                    estimate = estimate._replace(low=float("nan"), high=float("nan"))
                span = {"n_from": int(mine["n"].min()), "n_to": int(mine["n"].max()), "pairs": len(mine)}
                rows.append({**told, **span, "gain": estimate.mean, "low": estimate.low, "high": estimate.high})
    return pd.DataFrame(rows)


def unfit(run: Path) -> str:
    """Why nothing can be left out by a run's draws; empty where it can."""
    path = run / "posterior.nc"
    if not path.is_file():
        return "it has no draws (posterior.nc)"
    density = arviz_io.read(path).log_likelihood
    kind, draws = density.attrs.get("draws_of"), density.sizes["chain"] * density.sizes["draw"]
    if kind == "point":
        return "its guide is a point, of which ArviZ's would be training likelihood"
    if kind == "examples":
        return "its latents are of single examples, drawn by an encoder that does not see the response"
    if kind is None:
        return "it is from before posterior.nc told what its draws are; run it again"
    return f"it has {draws} draws, less than {LEAST_DRAWS}" if draws < LEAST_DRAWS else ""


def leave_one_out(variants: Sequence[Variant], seeds: Sequence[int]) -> pd.DataFrame:
    """``az.compare`` of PSIS-LOO (:func:`hierfl.arviz_io.loo`) under every seed, and how many k are large.

    Columns seed, variant, those of ``az.compare``, good_k and k_large, the share of the examples above it.
    """
    import pandas as pd

    parts = []
    for seed in seeds:
        found = {v.name: arviz_io.loo(arviz_io.read(v.runs[seed] / "posterior.nc")) for v in variants}
        frame = arviz_io.import_arviz().compare(found).rename_axis("variant").reset_index()
        frame.insert(0, "seed", seed)
        large = {name: float((one["pareto_k"] > one["good_k"]).mean()) for name, one in found.items()}
        frame["good_k"] = frame["variant"].map({name: one["good_k"] for name, one in found.items()})
        frame["k_large"] = frame["variant"].map(large)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


@dataclass
class Comparison:
    """What a comparison found.

    Attributes:
        variants: the first is compared with every other.
        gains, table, sizes: see :func:`pairs`, :func:`table`, :func:`sizes`.
        loo: see :func:`leave_one_out`; None where it was not wanted, or there are no two variants fit for it.
        unfit: variants that are not in ``loo``, and why.
        scarce: metrics of which few test examples say little, and so nothing is said.
        crossing: whether a client's name means the same data under every seed.
    """

    variants: list[Variant]
    gains: pd.DataFrame
    table: pd.DataFrame
    sizes: pd.DataFrame
    loo: pd.DataFrame | None
    unfit: dict[str, str]
    scarce: list[str]
    crossing: bool


def compared(runs: Sequence[Path], want_loo: bool | None = None) -> Comparison:
    """Compares runs; see the module.

    Args:
        runs: folders of finished runs, those of the method in question first.
        want_loo: True insists on leave-one-out, False leaves it out, None has it where all runs have draws.

    Raises:
        UserError: for runs that cannot be compared, or that have no draws where leave-one-out was asked for.
    """
    variants = gather(runs)
    if len(variants) < 2:
        raise UserError(f"all these runs are {variants[0].name}: there is nothing to compare")
    crossing, gains = crossed(variants[0]), pairs(variants)
    if gains.empty:
        raise UserError("no client has test data to be compared on (of tables: hierfl run --test 0.2)")
    scarce = [m for m in NEEDS_MANY if m in gains and gains["n_test"].median() < MIN_TEST_EXAMPLES]
    gains = gains.drop(columns=scarce)
    seeds = sorted(set.intersection(*(set(v.runs) for v in variants)))
    reasons = (
        {}
        if want_loo is False
        else {v.name: next(filter(None, (unfit(v.runs[s]) for s in seeds)), "") for v in variants}
    )
    fit = [v for v in variants if v.name in reasons and not reasons[v.name]]
    if want_loo and (len(fit) < 2 or not seeds):
        name, reason = next(((k, v) for k, v in reasons.items() if v), ("they", "have no seed in common"))
        raise UserError(f"leave-one-out needs two variants with draws; {name}: {reason}")
    found = leave_one_out(fit, seeds) if len(fit) > 1 and seeds else None
    told = {k: v for k, v in reasons.items() if v}
    return Comparison(variants, gains, table(gains, crossing), sizes(gains, crossing), found, told, scarce, crossing)


def _shown(metric: str, row: Any) -> tuple[str, str]:
    """A gain and its interval: percentage points of shares, else the number."""
    scale, digits = (100, 2) if metric in ("accuracy", "ece", "coverage90") else (1, 3)
    gain, low, high = (f"{scale * value:+.{digits}f}" for value in (row.gain, row.low, row.high))
    return gain, "" if np.isnan(row.low) else f"{low}…{high}"


def labels(variants: Sequence[Variant]) -> dict[str, str]:
    """Their names, without the method where all have the same."""
    methods = {v.method for v in variants}
    start = f"{next(iter(methods))} (" if len(methods) == 1 else None
    return {v.name: v.name.removeprefix(start).replace(")", "", 1) if start else v.name for v in variants}


LABELS = {
    "accuracy": "accuracy, pp", "nll": "NLL", "brier": "Brier", "ece": "ECE, pp", "rmse": "RMSE", "crps": "CRPS",
    "coverage90": "to 90 % cover, pp",
}  # fmt: skip


@dataclass
class Shown:
    """A table as it is shown, with what there is to say before and after."""

    columns: list[str]
    rows: list[list[str]]
    before: str = ""
    after: str = ""


def heading(found: Comparison) -> str:
    """What was compared with what."""
    first, others = found.variants[0], found.variants[1:]
    run, summary = first.setting["run"], next(iter(first.summaries.values()))
    told = f"{first.name} against {', '.join(v.name for v in others)}: {run['data']}, {summary['clients']} clients, "
    told += f"{run['split']}."
    if own := chosen(found.variants):
        told += f" Settings: {own}."
    if other := differing(found.variants):
        apart = "; ".join(f"{k} {', '.join(str(v) for v in values)}" for k, values in other.items())
        told += f" They differ in more than method and settings: {apart}."
    return told


def shown(found: Comparison) -> list[Shown]:
    """Gains, who gains, and leave-one-out."""
    by_pair = found.table.groupby("over", sort=False)["seeds"].max()
    seeds = int(by_pair.max())
    over = f"a bootstrap over seeds and {'clients' if found.crossing else 'the clients of each'}"
    over = "a bootstrap over clients alone (one seed)" if seeds == 1 else over
    number = (
        f"{seeds}"
        if by_pair.nunique() == 1
        else ", ".join(f"{labels(found.variants)[k]}: {v}" for k, v in by_pair.items())
    )
    label, metrics = labels(found.variants), list(dict.fromkeys(found.table["metric"]))
    gains = Shown(
        ["over", "predictions", "metric", "gain", "95 %", "gain, lose"], [],
        f"Gains: positive where the first is better; mean over clients and seeds ({number}), the central 95 % of "
        f"{over}, and the share of clients that gain and that lose.",
        f"{' and '.join(LABELS[m].partition(',')[0] for m in found.scarce)} left out: half of the clients have less "
        f"than {MIN_TEST_EXAMPLES} test examples, on which they say more of that number than of the model." if found.scarce else "",
    )  # fmt: skip
    for row in found.table.sort_values("metric", key=lambda c: c.map(metrics.index), kind="stable").itertuples():
        share = f"{100 * row.share_better:.0f} %, {100 * row.share_worse:.0f} %"
        gains.rows.append([label[row.over], KINDS[row.kind], LABELS[row.metric], *_shown(row.metric, row), share])
    who = Shown(["over", "metric", "clients with n", "gain", "95 %", "rank r with n"], [])
    last = found.sizes[found.sizes["kind"] == found.sizes["kind"].iloc[-1]]
    words = {"mean": "at the posterior mean", "draws": "averaged over draws"}[last["kind"].iloc[0]]
    who.before = f"Who gains (predictions {words}; r is Spearman's of gain and size, all seeds together):"
    for row in last.itertuples():
        span = f"{row.n_from}" if row.n_from == row.n_to else f"{row.n_from} to {row.n_to}"
        rank = "" if np.isnan(row.rank_correlation_with_n) else f"{row.rank_correlation_with_n:+.2f}"
        who.rows.append([label[row.over], LABELS[row.metric], span, *_shown(row.metric, row), rank])
    tables = [gains, who]
    if found.loo is not None:
        tables.append(_shown_loo(found.loo, label))
    told = [f"{label[name]}: {reason}" for name, reason in found.unfit.items()]
    if told:
        tables[-1].after += f" No leave-one-out of {'; '.join(told)}."
    return tables


def _shown_loo(frame: pd.DataFrame, label: Mapping[str, str]) -> Shown:
    table = Shown(
        ["seed", "", "elpd", "behind", "its se", "p_loo", "weight", "large k"], [],
        "Leave-one-out log predictive density of the training data (PSIS), globals held; best first, and how far the "
        "others are behind it:",
        f"Large k: examples that importance sampling cannot leave out (Pareto's k above {frame['good_k'].min():.2f}); "
        f"above {TOO_MANY:.0%} of them no sum is shown. The base network and the population saw every example, which "
        "makes this optimistic: rank methods with a network by held-out NLL.",
    )  # fmt: skip
    bad = frame.groupby("seed")["k_large"].max() > TOO_MANY
    for row in frame.itertuples():
        one = [f"{x:.1f}" for x in (row.elpd_loo, row.elpd_diff, row.dse, row.p_loo)] + [f"{row.weight:.2f}"]
        if row.k_large > TOO_MANY:
            one = [""] * 5
        elif bad[row.seed]:  # (nothing to be compared with)
            one[1] = one[2] = one[4] = ""
        table.rows.append([str(row.seed), label[row.variant], *one, f"{row.k_large:.0%}"])
    return table


def markdown(found: Comparison) -> str:
    """The comparison as text."""
    lines = [heading(found)]
    for one in shown(found):
        lines += ["", one.before, "", f"| {' | '.join(one.columns)} |", "|---" * len(one.columns) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in one.rows]
        lines += ["", one.after.strip()] if one.after else []
    return "\n".join([*lines, ""])


def between(found: Comparison) -> dict[str, Callable[[Any], Any]]:
    """The first beside what each client alone and one model for all reach, where both are among the others.

    Methods local and fedavg; {metric: a picture, function of an axis} of the first seed that all three have.
    """
    from hierfl.plots.gains import three_ways

    by_method = {v.setting["run"]["method"]: v for v in reversed(found.variants)}
    first, three = found.variants[0], [by_method.get("local"), by_method.get("fedavg")]
    if None in three or first in three:
        return {}
    alone, pooled = three
    assert alone is not None
    assert pooled is not None
    seeds = sorted(set(first.runs) & set(alone.runs) & set(pooled.runs))
    if not seeds:
        return {}
    ours, own, one = (v.clients[v.clients["seed"] == seeds[0]].set_index("client") for v in (first, alone, pooled))
    metrics = [m for m in ("accuracy", "nll", "rmse") if m in ours and m in own and m in one]
    return {m: partial(three_ways, ours, own, one, m, LABELS[m].partition(",")[0], first.name) for m in metrics}


def path_from(folder: Path, run: Path) -> str:
    """A run's path as seen from a comparison's folder: both may be moved together."""
    return os.path.relpath(run.resolve(), folder.resolve())


def write(found: Comparison, folder: Path) -> list[Path]:
    """Tables and pictures of a comparison into a folder; the pictures' paths."""
    from hierfl.plots.clients import column_by_size, confidence_by_deviation
    from hierfl.plots.gains import gain_by_size, gain_intervals
    from hierfl.plots.saving import save_all

    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "runs": {v.name: {str(s): path_from(folder, run) for s, run in v.runs.items()} for v in found.variants},
        "settings": {v.name: v.setting for v in found.variants},
        "table": found.table.to_dict("records"),
        "versions": folders.versions(),
    }
    # first what the folder is known by: killed after it, the comparison can be reported, or overwritten
    folders.write_text(folder / "comparison.json", json.dumps(record, indent=1) + "\n")
    write_frame(folder / "gains.csv", found.gains)
    write_frame(folder / "table.csv", found.table)
    write_frame(folder / "sizes.csv", found.sizes)
    if found.loo is not None:
        write_frame(folder / "loo.csv", found.loo)
    folders.write_text(folder / "comparison.md", markdown(found))
    first, drawn = found.variants[0], dict[str, Callable[[Any], Any]]()
    metrics = list(dict.fromkeys(found.table["metric"]))
    for metric in metrics:
        rows = found.table[found.table["metric"] == metric]
        drawn[f"gain-{metric}"] = partial(gain_intervals, rows, LABELS[metric])
    last = found.gains[found.gains["kind"] == found.gains["kind"].iloc[-1]]
    for number, over in enumerate(v.name for v in found.variants[1:]):
        for metric in [m for m in ("accuracy", "rmse", "nll") if m in metrics]:
            label = f"gain in {LABELS[metric].partition(',')[0]} over {labels(found.variants)[over]}"
            drawn[f"size-{number + 1}-{metric}"] = partial(gain_by_size, last[last["over"] == over], metric, label)
    if {"tau", "deviation"} <= set(first.clients):
        one = first.clients[first.clients["seed"] == first.clients["seed"].min()]
        drawn["confidence"] = partial(column_by_size, one, "tau", "confidence $\\tau_j$")
        drawn["confidence-deviation"] = partial(confidence_by_deviation, one)
    drawn |= {f"three-{metric}": draw for metric, draw in between(found).items()}
    pictures = save_all(folder / "figures", drawn, f"{first.name} against others", "overview")
    page.of_comparison(found, folder)
    return pictures
