"""What a loaded run says of new rows, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.data.formula import gate
from hierfl.data.reading.options import Reading
from hierfl.data.spellings import Spelling, Spellings, as_known
from hierfl.errors import UserError
from hierfl.inference.checks import MAX_DRAWS
from hierfl.inference.evaluation.inputs import raw_inputs
from hierfl.inference.run.result import Run
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

from ..config import RunConfig
from .clients_asked import check_fitted, name_others
from .codes import warn_of_far_inputs
from .new_rows import NewRows, network_rows, table_rows

if TYPE_CHECKING:
    import pandas as pd

#: probability of an interval where nothing is said
INTERVAL = 0.9
#: words for a client's own label shares
OWN_SHARES_WORDS = ("", "own")
#: draws of a new client's latents where nothing is said
NEW_DRAWS = 100


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        data: the file of new rows, or the rows.
        client: whose model; None for the clients that the file names.
        new: whether the clients are not among those fitted.
        given: rows of the new clients with responses, or a file of them; None for none.
        interval: its probability; None where nothing was said.
        draws: that predictions are averaged over; None where nothing was said.
        group: the table's column of clients; None for the run's.
        reading: how the table is read; None as the run's own.
        shares: label shares of a method that has some; empty for the clients' own. For others there is no temperature,
            and there are no sets.
    """

    data: Path | NewRows
    client: str | None = None
    new: bool = False
    given: Path | NewRows | None = None
    interval: float | None = None
    draws: int | None = None
    group: str | None = None
    reading: Reading | None = None
    shares: str = ""

    def __post_init__(self) -> None:
        if self.client is not None and self.new:
            raise UserError("--client is one of those fitted, and --new says that it is not: say one of them")
        if self.given is not None and not self.new:
            raise UserError("--given has rows of new clients: say --new, too")
        if self.shares and self.new:
            raise UserError("--shares are of a client that was fitted, and --new is of others")
        if self.interval is not None and not 0 < self.interval < 1:
            raise UserError(f"--interval is a probability between 0 and 1, not {self.interval:g}")
        if self.draws is not None and not 0 <= self.draws <= MAX_DRAWS:
            raise UserError(f"--draws is from 0 to {MAX_DRAWS:,}, not {self.draws:,}")


def answered(loaded: Run | FittedMixedModel | FittedModel, run: RunConfig, asked: Question) -> pd.DataFrame:
    """A row of predictions for each row of the file.

    Of classes ``label``, ``p(LABEL)`` of each class and, of a run with ``--conformal``, ``set``; of numbers in a table
    what ``run.predict(df)`` gives, in arrays ``mean``, ``sd``, ``response_lower`` and ``response_upper``; before them
    ``client``, where it is known. Of mixed and of plain Pyro models what their own ``predict`` gives.

    Raises:
        UserError: for a file that does not fit, or clients that are not known.
    """
    if asked.shares and not isinstance(loaded, Run):
        raise UserError(f"this model has no label shares, which --shares {asked.shares} would set")
    if isinstance(loaded, FittedMixedModel):
        return _of_mixed(loaded, run, asked)
    if isinstance(loaded, FittedModel):
        return _of_model(loaded, run, asked)
    return _of_network(loaded, run, asked)


# -- networks ---------------------------------------------------------------------------------------------------------


def _of_network(run: Run, config: RunConfig, asked: Question) -> pd.DataFrame:
    import pandas as pd

    federation = run.fitted.federation
    classes = federation.task == "classification"
    if classes and asked.interval is not None:
        raise UserError("--interval is of numbers, and the run predicts classes")
    if asked.draws and not run.random and not asked.new:
        raise UserError("the run has no draws to average over: --draws 0")
    rows = network_rows(asked.data, federation, config, asked.group, asked.reading)
    x = raw_inputs(federation, rows.x)
    warn_of_far_inputs(federation, x)
    labelled = _classes if classes else _numbers
    parts = []
    for name, places in _groups(run, config, rows, len(x), asked):
        if not classes and isinstance(rows.x, pd.DataFrame):
            answers = _numbers_of_table(run, rows.x.iloc[places], name, asked, _given(run, config, asked, name))
        else:
            answers = labelled(run, x[places], name, asked, _predictor(run, config, asked, name))
        if name is not None:
            answers.insert(0, "client", name)
        parts.append(answers.set_axis(places))
    table = pd.concat(parts).sort_index()
    if rows.files:
        table.insert(0, "file", rows.files)
    return table


def _groups(
    run: Run, config: RunConfig, rows: NewRows, n: int, asked: Question
) -> Iterator[tuple[str | None, np.ndarray]]:
    """Clients by name, and their rows."""
    ids = list(run.ids)
    if asked.client is not None:
        check_fitted([asked.client], ids)
        if rows.owner is not None:
            name_others(rows.owner, asked.client)
        yield asked.client, np.arange(n)
        return
    if rows.owner is None:
        if not asked.new and len(ids) > 1:
            raise UserError(
                f"whose rows are these? {asked.data.name} does not say: --client NAME, --new, or of a table --group "
                "COLUMN"
            )
        yield None if asked.new else ids[0], np.arange(n)
        return
    how = Spellings.from_choice(config.spellings or "refuse")[str(config.group)]
    owner = rows.owner if asked.new else as_known(rows.owner, ids, how, "the column of clients")
    names = list(dict.fromkeys(owner.tolist()))
    if not asked.new:
        check_fitted(names, ids)
    for name in names:
        if asked.new and name in ids:
            raise UserError(f"client {name!r} was fitted, and --new is of clients that were not: leave one of them out")
        yield name, np.flatnonzero(owner == name)


#: from inputs and draws to probabilities (n, C), or mean and standard deviation (n, 2)
Predict = Callable[[Tensor, int | None], Tensor]


def _predictor(run: Run, config: RunConfig, asked: Question, name: str | None) -> Predict:
    """A client's own model, or what there is for a new one."""
    calibration = run.calibration if asked.shares in OWN_SHARES_WORDS else None
    warm = calibration is not None and calibration.powers is not None
    if not asked.new:
        client = str(name)
        return lambda x, draws: run.predict(x, client, draws=draws or 0, tempered=warm, shares=asked.shares)
    given = _given(run, config, asked, name)
    return lambda x, draws: run.predict_new_client(x, NEW_DRAWS if draws is None else draws, given=given)


def _given(run: Run, config: RunConfig, asked: Question, name: str | None) -> Any:
    """Inputs and responses of a new client; None where none are given."""
    if asked.given is None:
        return None
    federation = run.fitted.federation
    rows = network_rows(asked.given, federation, config, asked.group, asked.reading)
    rows = rows if name is None else rows.for_client(name)
    if rows.y is None:
        column = federation.about.get("response")
        kinds = "FILE.npz with x and y, or pictures in CLIENT/LABEL/*.png" + f", or a table with {column!r}" * bool(
            column
        )
        raise UserError(f"{asked.given.name} has no responses: --given takes {kinds}")
    if not len(rows.y):
        raise UserError(f"{asked.given.name} has no rows of client {name!r}")
    return raw_inputs(federation, rows.x), rows.y


def _classes(run: Run, x: Tensor, name: str | None, asked: Question, predict: Predict) -> pd.DataFrame:
    import pandas as pd

    names, calibration = run.fitted.federation.label_names, run.calibration
    values = predict(x, asked.draws).cpu().numpy()
    columns = {f"p({label})": column for label, column in zip(names, values.T, strict=True)}
    table = pd.DataFrame({"label": np.array(names)[values.argmax(1)], **columns})
    if asked.new or calibration is None or calibration.threshold is None or asked.shares not in OWN_SHARES_WORDS:
        return table
    sets = run.prediction_sets(x, str(name)).cpu().numpy()
    return table.assign(set=["|".join(np.array(names)[inside]) for inside in sets])


def _numbers(run: Run, x: Tensor, name: str | None, asked: Question, predict: Predict) -> pd.DataFrame:
    """The interval is of a normal with the mean and standard deviation of the prediction."""
    import pandas as pd

    draws = run.options.draws * run.random if asked.draws is None and not asked.new else asked.draws
    mean, sd = predict(x, draws).double().cpu().numpy().T
    z = float(ndtri((1 + (asked.interval or INTERVAL)) / 2))
    return pd.DataFrame({"mean": mean, "sd": sd, "response_lower": mean - z * sd, "response_upper": mean + z * sd})


def _numbers_of_table(run: Run, df: pd.DataFrame, name: str | None, asked: Question, given: Any) -> pd.DataFrame:
    """The answer of Python to the same table, to the bit."""
    interval = asked.interval or INTERVAL
    if asked.new:
        draws = NEW_DRAWS if asked.draws is None else asked.draws
        unnamed = df.drop(columns=run.fitted.federation.about.get("client") or [], errors="ignore")
        answer = run.predict_new_client(unnamed, draws, given=given, interval=interval)
    else:
        answer = run.predict(df, str(name), draws=asked.draws, interval=interval, shares=asked.shares)
    table: pd.DataFrame = answer.drop(columns="client", errors="ignore")
    return table


# -- tables -----------------------------------------------------------------------------------------------------------


def _of_mixed(fitted: FittedMixedModel, config: RunConfig, asked: Question) -> pd.DataFrame:
    if asked.draws is not None:
        raise UserError("--draws is not for a mixed model, which predicts by all of its draws")
    reader = fitted.run.fitted.federation.about["reader"]
    column = reader.places.levels.client
    terms = gate.parse(reader.formula)
    text = {*terms.places, column, asked.group or "", *reader.more.groups}
    rows = table_rows(asked.data, config, text, asked.reading, terms.predictors, reader.spread)
    df = _regrouped(rows, asked, column)
    ids = list(fitted.run.ids)
    if not asked.new:
        _check_known(df, column, ids, reader.spellings[column])
    given = None
    if asked.given is not None:
        used = {*terms.predictors, *(terms.response or ()), *reader.more.columns - reader.more.groups}
        given = _regrouped(table_rows(asked.given, config, text, asked.reading, used, reader.spread), asked, column)
    names = client_names(df[column], f"column {column!r}") if asked.new and column in df.columns else None
    if fitted_ones := [name for name in dict.fromkeys([] if names is None else names.tolist()) if name in ids]:
        raise UserError(
            f"client {fitted_ones[0]!r} was fitted, and --new is of clients that were not: leave one of them out"
        )
    with torch.random.fork_rng(devices=[]):
        table = fitted.predict(df, "new" if asked.new else "client", asked.interval or INTERVAL, given)
    if names is not None and given is None:
        table.insert(0, "client", names)
    return table


def _of_model(fitted: FittedModel, config: RunConfig, asked: Question) -> pd.DataFrame:
    facts = fitted.run.fitted.federation.about
    column = str(facts["client"])
    used = list(facts["columns"])
    text = {column, asked.group or ""}
    df = _regrouped(table_rows(asked.data, config, text, asked.reading, used), asked, column)
    given = None
    if asked.given is not None:
        given = _regrouped(table_rows(asked.given, config, text, asked.reading, used), asked, column)
    if asked.new and column not in df.columns:
        df = df.assign(**{column: "new"})
        given = None if given is None else given.assign(**{column: "new"})
    if not asked.new:
        _check_known(df, column, list(fitted.run.ids), "keep")
    return fitted.predict(df, draws=asked.draws or None, new=asked.new, given=given,
                          interval=asked.interval or INTERVAL)  # fmt: skip


def _check_known(df: pd.DataFrame, column: str, ids: list[str], how: Spelling) -> None:
    """Refuses a table without the clients' column, or with one that was not fitted."""
    if column not in df.columns:
        if len(ids) > 1:
            raise UserError(f"the table has no column {column!r}: whose rows are these? --client NAME, or --new")
        return
    names = as_known(client_names(df[column], f"column {column!r}"), ids, how, column)
    check_fitted(list(dict.fromkeys(names.tolist())), ids)


def _regrouped(df: pd.DataFrame, asked: Question, column: str) -> pd.DataFrame:
    """The table with the clients' column named as in the fit, or with the client that was given."""
    if asked.group is not None and asked.group != column:
        if asked.group not in df.columns:
            raise UserError(f"the table has no column {asked.group!r} that says whose rows are whose")
        df = df.drop(columns=column, errors="ignore").rename(columns={asked.group: column}).astype({column: str})
    if asked.client is None:
        return df
    if column in df.columns:
        name_others(client_names(df[column], f"column {column!r}"), asked.client)
    return df.assign(**{column: asked.client})
