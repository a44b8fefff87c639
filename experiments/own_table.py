"""Runs of networks on a user's table: what is usual for them, and their data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hierfl.data import tables
from hierfl.data.federated.response_sums import noise_of
from hierfl.data.federation import Federation
from hierfl.data.formula.missing import whole_rows
from hierfl.data.pool import Task
from hierfl.data.reading.options import Reading, split_words
from hierfl.errors import UserError, unknown
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.plurals import counted

from .config import RunConfig, flag, options

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: options of tables that a network's table has, too
OF_TABLES = frozenset(("group", "spellings", "na", "reading", "test_fraction", "weights"))
#: options of arrays that it has not, and why
INAPPLICABLE_OPTIONS = {
    "clients": "--group names the clients",
    "split": "--group names the clients",
    "ood": "strange inputs are those of a data set",
}


def check_network_table(name: str, data: str, given: Mapping[str, Any]) -> None:
    """Refuses options that say nothing of a network's table, and asks for those that it needs.

    Args:
        name: of the method.
        data: the table.
        given: the options that were given.

    Raises:
        UserError: for such an option, or a table without --group and --y.
    """
    for option in given:
        if option in INAPPLICABLE_OPTIONS:
            raise UserError(f"{flag(option)} is not for {data}: {INAPPLICABLE_OPTIONS[option]}")
        if options()[option].data == "tables" and option not in OF_TABLES:
            raise UserError(f"{flag(option)} is a mixed model's, and {name} is a network's method")
    for option, what in (("group", "names the clients"), ("y", "is predicted")):
        if option not in given:
            raise UserError(f"say which column of {data} {what}: --{option} COLUMN")
    if (least := given.get("least_rows")) is not None and least < 1:
        raise UserError(f"--least-rows is a whole number of at least 1, not {least}")
    if (given.get("reading") or {}).get("reference"):
        raise UserError("--reference is a formula's: a network has an input for each level")


def usual_of_network_table() -> dict[str, Any]:
    """What is usual where nothing is said, beside what is usual for arrays of one's own."""
    return {
        "clients": 0, "split": "natural", "learn_sd": "shared", "standardise": "auto", "test_fraction": 0.2,
        "na": "refuse", "spellings": "refuse", "least_rows": 1,
    }  # fmt: skip


def from_network_table(run: RunConfig, latent: bool) -> tuple[Federation, Architecture]:
    """The data of a run on a table, and its network.

    Raises:
        UserError: for a table that cannot be used.
    """
    group, y = cast(str, run.group), cast(str, run.y)
    reading = Reading.from_table(run.reading)
    header = [str(name) for name in tables.read(run.data, text={group}, reading=reading).columns]
    weights = [run.weights] if run.weights else []
    inputs = list(split_words(run.x)) if run.x else [name for name in header if name not in (group, y, *weights)]
    if strange := [name for name in (group, y, *inputs, *weights) if name not in header]:
        raise unknown("column", strange[0], header)
    df = tables.read(run.data, {y, *inputs, *weights}, {group}, reading=reading)
    df = df[list(dict.fromkeys([group, *inputs, y, *weights]))]
    df, left_out = _whole(df, [*inputs, y, *weights], group, run.na == "drop")
    task = cast("Task", run.task) if run.task else _sure_task(df[y], y)
    df = _large_enough(df, group, run.least_rows or 1)
    _check_rows(df[group], 2 if task == "classification" else 1)
    federation = Federation.from_frame(
        df, client=group, y=y, x=inputs if run.x else None, test=run.test_fraction or 0.0,
        validation=run.validation_fraction, seed=run.seed, task=task,
        standardise={"yes": True, "no": False}.get(run.standardise, "auto"), spellings=run.spellings or "refuse",
        name=tables.stem(run.data), weights=run.weights or None,
        validation_of=run.validation_of,
    )  # fmt: skip
    facts = {**federation.about, "split": f"by {group}"} | ({} if left_out is None else {"left_out": left_out})
    federation = replace(federation, about=facts)
    return federation, network_of(run, federation, latent)


def network_of(run: RunConfig, federation: Federation, latent: bool) -> Architecture:
    """The network of a run.

    Raises:
        UserError: for one that does not suit the data.
    """
    network = architecture(
        run.network, federation, noise_of(run.response_sd, run.learn_sd), latent, head=run.head or "linear",
        weights=run.network_weights,
    )  # fmt: skip
    if federation.task == "classification" and (run.response_sd != 1.0 or run.learn_sd == "clients"):
        name = "--response-sd" if run.response_sd != 1.0 else "--learn-sd clients"
        raise UserError(f"{name} is a regression's, and this is a classification")
    return network


def _whole(df: pd.DataFrame, columns: list[str], group: str, drop: bool) -> tuple[pd.DataFrame, dict[str, int] | None]:
    """The rows that lack no value, and how many of each client do; None where they are refused."""
    whole = whole_rows(df, columns)
    if not drop:
        if not whole.all():
            name = next(name for name in columns if df[name].isna().any())
            number = int(df[name].isna().sum())
            raise UserError(
                f"column {name!r} has {number} missing value{'s' * (number != 1)}: --na drop leaves out such rows"
            )
        return df, None
    if not whole.any():
        raise UserError("every row lacks a value of a column that is used: none would be left")
    lost = df.loc[~whole, group].astype(str).value_counts()
    return df[whole].reset_index(drop=True), {str(name): int(count) for name, count in sorted(lost.items())}


def _large_enough(df: pd.DataFrame, group: str, least: int) -> pd.DataFrame:
    """The rows of the clients with at least so many."""
    sizes = df[group].value_counts()
    if not (small := sizes[sizes < least]).size:
        return df
    if len(small) == len(sizes):
        raise UserError(f"no client has {least} rows; the largest has {int(sizes.max())}")
    names = ", ".join(map(str, small.index[:3])) + ", ..." * (len(small) > 3)
    log.warning(
        "%d of %d clients %s fewer than %d rows; left out with %s: %s (%s)",
        len(small), len(sizes), *(("has", least, "it") if len(small) == 1 else ("have", least, "them")),
        counted(int(small.sum()), "row"), names,
    )  # fmt: skip
    return df[df[group].map(sizes) >= least].reset_index(drop=True)


def _check_rows(clients: pd.Series, least: int) -> None:
    """Refuses a client with fewer rows than a fit needs."""
    sizes = clients.value_counts()
    if (small := sizes[sizes < least]).size:
        names = ", ".join(map(str, small.index[:3])) + ", ..." * (len(small) > 3)
        raise UserError(
            f"{len(small)} of {len(sizes)} clients {'has' if len(small) == 1 else 'have'} fewer than {least} rows "
            f"({names}): --least-rows {least} leaves {'it' if len(small) == 1 else 'them'} out"
        )


def _sure_task(column: pd.Series, name: str) -> Task:
    """Words, truth values and two whole numbers are labels; fractions are responses.

    Raises:
        UserError: for other whole numbers, which may be labels or amounts, and for a single value.
    """
    kind, number = column.dtype.kind, column.nunique()
    if number < 2:
        raise UserError(f"column {name!r} holds {column.iloc[0]!r} in every row: there is nothing to predict")
    if kind not in "iuf":
        return "classification"
    if kind == "f" and bool((column != column.round()).any()):
        return "regression"
    if number == 2:
        return "classification"
    values = sorted(column.unique().tolist())
    shown = ", ".join(f"{value:g}" for value in values[:4]) + ", ..." * (number > 4)
    raise UserError(
        f"column {name!r} holds {number} different whole numbers ({shown}): say --task classification if they are "
        "labels, or --task regression if they are amounts"
    )


def described(federation: Federation) -> str:
    """What a network's table was taken for, in a line; empty of other data."""
    facts = federation.about
    if "response" not in facts or not facts.get("columns"):
        return ""
    labels = list(map(str, facts["labels"]))
    shown = f" ({', '.join(labels[:6])}{', ...' * (len(labels) > 6)})" if labels else ""
    inputs = [f"{name} ({counted(len(levels), 'level')})" if (levels := facts["categories"].get(name)) else name
              for name in facts["columns"]]  # fmt: skip
    return f"{facts['response']}: {federation.task}{shown}; inputs: {', '.join(inputs)}"
