"""Predictions of a table's rows as a table: whose they are, classes by their names, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from hierfl.data.client_names import client_names
from hierfl.data.federation import Federation
from hierfl.data.frames import is_table
from hierfl.data.response_units import ResponseUnits
from hierfl.data.spellings import as_known
from hierfl.errors import UserError
from hierfl.rng import key

from ..calibration.calibrate import Calibration, calibrated
from ..checks import check_draws
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import client_row
from ..evaluation.response import over_draws, predictions
from .predictions import Examples, client_responses, new_client_responses, predicted, predicted_log_probs

if TYPE_CHECKING:
    import pandas as pd

#: draws of a guide, where a table's intervals need some and the caller states none
INTERVAL_DRAWS = 200
#: draws of a response that is not Normal, for its interval
RESPONSE_DRAWS = 1000
#: standard deviations beyond which no quantile of a Normal lies
QUANTILE_RANGE_SDS = 10
#: halvings of the interval in which a quantile lies: the last one is below 1e-15 of the first
HALVINGS = 60


@dataclass(frozen=True)
class Source:
    """What predicts.

    Attributes:
        fitted: method, data and state.
        calibration: of the fit, where it has one.
        seed: of draws.
        random: whether the guide has draws.
        shares: label shares for which it predicts; empty for the clients' own. For others than these there is no
            temperature, and there are no sets.
    """

    fitted: Fitted
    calibration: Calibration | None
    seed: int
    random: bool
    shares: str = ""


def of_clients(
    source: Source, df: pd.DataFrame, client: int | str | None, draws: int | None, interval: float | None,
    tempered: bool | None,
) -> pd.DataFrame:  # fmt: skip
    """See :meth:`hierfl.inference.run.result.Run.predict`."""
    import pandas as pd

    check_interval(interval)
    if draws is not None:
        check_draws(draws)
    if not len(df):
        raise UserError("there are no inputs to predict for")
    federation = source.fitted.federation
    owner = _owners(federation, df, client)
    parts = []
    for row in dict.fromkeys(owner.tolist()):
        places = np.flatnonzero(owner == row)
        parts.append(_of_client(source, df.iloc[places], row, draws, interval, tempered).set_axis(places))
    table = pd.concat(parts).sort_index().set_axis(df.index)
    table.insert(0, "client", [federation.ids[row] for row in owner])
    return table


def of_new_client(
    source: Source, df: pd.DataFrame, draws: int, given: Examples | pd.DataFrame | None, rounds: int,
    interval: float | None,
) -> pd.DataFrame:  # fmt: skip
    """See :meth:`hierfl.inference.run.result.Run.predict_new_client`."""
    import pandas as pd

    check_interval(interval)
    owner = _new_owners(source.fitted.federation, df)
    names: list[str | None] = [None] if owner is None or not len(df) else list(dict.fromkeys(owner.tolist()))
    parts = []
    for name in names:
        places = np.arange(len(df)) if name is None else np.flatnonzero(owner == name)
        examples = _examples(source.fitted.federation, given, name, several=len(names) > 1)
        part = _of_new_client(source, df.iloc[places], draws, examples, rounds, interval)
        parts.append(part.set_axis(places))
    table = pd.concat(parts).sort_index().set_axis(df.index)
    if owner is not None:
        table.insert(0, "client", owner)
    return table


def _of_new_client(
    source: Source, df: pd.DataFrame, draws: int, given: Examples | None, rounds: int, interval: float | None
) -> pd.DataFrame:
    federation, seed = source.fitted.federation, key(source.seed, "new client's response")
    fns = new_client_responses(source.fitted, df, draws, given, rounds)
    means = torch.cat([predictions(fn, federation.task, federation.units) for fn in fns])
    if federation.task == "classification":
        return _of_classes(federation, means)
    return _of_responses(federation.units, means, fns, interval, seed, spread=draws > 0)


def _new_owners(federation: Federation, df: pd.DataFrame) -> np.ndarray | None:
    """The name of each row's client, (n,); None where the table does not say, or has rows of fitted clients alone.

    Raises:
        UserError: for clients of whom some were fitted, and others not.
    """
    column = federation.about.get("client")
    if column is None or column not in df.columns:
        return None
    names = client_names(df[column], f"column {column!r}")
    fitted = [name for name in dict.fromkeys(names.tolist()) if name in federation.ids]
    if fitted and len(fitted) < len(set(names.tolist())):
        raise UserError(
            f"client {fitted[0]!r} was fitted, and others of the table were not: predict(df) has its own model"
        )
    return None if fitted else names


def _examples(federation: Federation, given: Any, name: str | None, *, several: bool) -> Examples | None:
    """A new client's inputs and targets.

    Args:
        federation: of the other clients.
        given: a pair, or a table with responses.
        name: the client's; None where its rows do not say.
        several: whether there are rows of other new clients, too.

    Raises:
        UserError: for a table without responses or without rows of this client, and where it is not clear whose
            examples they are.
    """
    if given is None or (not is_table(given) and not several):
        return cast("Examples | None", given)
    column, response = federation.about.get("client"), federation.about.get("response")
    if is_table(given) and response not in given.columns:
        raise UserError(f"given has no responses: it lacks column {response!r}")
    names = client_names(given[column], f"column {column!r} of given") if is_table(given) and column in given else None
    if names is None and several:
        raise UserError(
            f"the rows are of several clients: given takes a table whose column {column!r} says whose are whose"
        )
    if names is not None and name is None and len(set(names.tolist())) > 1:
        raise UserError(f"given has rows of several clients, and the table that is predicted has no column {column!r}")
    rows = given if names is None or name is None else given[names == name]
    if not len(rows):
        raise UserError(f"given has no rows of client {name!r}")
    return rows, rows[response]


def check_interval(interval: float | None) -> None:
    """Refuses what is no share of draws.

    Raises:
        UserError: for another number or object.
    """
    number = isinstance(interval, int | float) and not isinstance(interval, bool)
    if interval is not None and not (number and 0 < interval < 1):
        raise UserError(f"interval is a share between 0 and 1, such as 0.9, or None, not {interval!r}")


def _owners(federation: Federation, df: pd.DataFrame, client: int | str | None) -> np.ndarray:
    """The place of each row's client, (n,)."""
    if client is not None:
        return np.full(len(df), client_row(federation, client))
    column, ids = federation.about.get("client"), list(federation.ids)
    if column is not None and column in df.columns:
        names = as_known(client_names(df[column], f"column {column!r}"), ids, "refuse", f"column {column!r}")
        position = {name: j for j, name in enumerate(ids)}
        if strange := sorted(set(names.tolist()) - position.keys()):
            way = "predict_new_client(df) is for one that was never seen"
            raise UserError(f"client {strange[0]!r} is not among those fitted: {way}")
        return np.array([position[name] for name in names.tolist()], dtype=np.int64)
    if len(ids) == 1:
        return np.zeros(len(df), dtype=np.int64)
    lacks = f"the table lacks column {column!r}, and" if column is not None else "the data have no column of clients:"
    raise UserError(f"{lacks} no client is named: predict(df, client=NAME)")


def _of_client(
    source: Source, df: pd.DataFrame, row: int, draws: int | None, interval: float | None, tempered: bool | None
) -> pd.DataFrame:
    fitted, number = source.fitted, draws or 0
    calibration = source.calibration if source.shares in ("", "own") else None
    federation = fitted.federation
    if federation.task == "classification":
        warm = calibration is not None and calibration.powers is not None if tempered is None else tempered
        log_probs = predicted_log_probs(fitted, row, df, number, source.shares)
        table = _of_classes(
            federation, (calibrated(calibration).tempered(log_probs, number) if warm else log_probs).exp()
        )
        if calibration is None or calibration.threshold is None:
            return table
        labels = np.array(federation.label_names)
        sets = calibration.sets(predicted_log_probs(fitted, row, df, calibration.draws)).cpu().numpy()
        return table.assign(set=["|".join(labels[inside]) for inside in sets])
    if tempered:
        raise UserError("a temperature is a classification's")
    means = predicted(fitted, row, df, number, source.shares)
    if interval is None:
        return _of_responses(federation.units, means, (), None, 0, spread=False)
    spread = (INTERVAL_DRAWS if draws is None else draws) * source.random
    fns = client_responses(fitted, row, df, spread)
    seed = key(source.seed, "response", federation.ids[row])
    return _of_responses(federation.units, means, fns, interval, seed, spread=spread > 0)


def _of_classes(federation: Federation, probabilities: Tensor) -> pd.DataFrame:
    """The likeliest class of each row, and all probabilities (n, C)."""
    import pandas as pd

    names, values = federation.label_names, probabilities.cpu().numpy()
    columns = {f"p({name})": column for name, column in zip(names, values.T, strict=True)}
    return pd.DataFrame({"label": np.array(names)[values.argmax(1)], **columns})


def _of_responses(
    units: ResponseUnits | None, means: Tensor, fns: Sequence[Distribution], interval: float | None, seed: int, *,
    spread: bool,
) -> pd.DataFrame:  # fmt: skip
    """The mean of each row, its interval over draws where there are any (``spread``), and that of a response.

    Args:
        units: the user's.
        means: mean and standard deviation, (n, 2).
        fns: the response at each draw, rows piece by piece.
        interval: of both.
        seed: of draws of a response that is not Normal.
        spread: whether the responses are several draws'.
    """
    import pandas as pd

    columns: dict[str, Any] = {"mean": means[:, 0].cpu().numpy()}
    if interval is not None:
        tails = ((1 - interval) / 2, (1 + interval) / 2)
        pieces: list[Any] = [getattr(fn, "reported", fn) for fn in fns]
        if spread:
            of_mean = torch.cat([_quantiles(over_draws(fn.mean)[:, 0].double(), tails) for fn in pieces], 1)
            columns |= dict(zip(("lower", "upper"), _users(units, of_mean), strict=True))
        of_response = torch.cat([_response_quantiles(fn, tails, seed) for fn in pieces], 1)
        columns |= dict(zip(("response_lower", "response_upper"), _users(units, of_response), strict=True))
    return pd.DataFrame(columns)


def _users(units: ResponseUnits | None, values: Tensor) -> np.ndarray:
    users_values: np.ndarray = (values if units is None else units.users(values)).cpu().numpy()
    return users_values


def _quantiles(values: Tensor, tails: Sequence[float]) -> Tensor:
    """Quantiles of draws (K, n), a row for each tail."""
    return torch.quantile(values, values.new_tensor(tails), dim=0)


def _response_quantiles(fn: Any, tails: Sequence[float], seed: int) -> Tensor:
    """Quantiles of the response averaged over draws, a row for each tail, (2, n).

    Of a mixture of Normals the equation F(q) = tail is solved by halving an interval that brackets it; of others draws
    are taken.
    """
    if not isinstance(fn, Normal):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)
            drawn = fn.sample(torch.Size([max(1, RESPONSE_DRAWS // over_draws(fn.mean).shape[0])]))
        return _quantiles(over_draws(drawn)[:, 0].double(), tails)
    mean, sd = over_draws(fn.mean)[:, 0].double(), over_draws(fn.stddev)[:, 0].double()
    normal, ends = Normal(mean, sd), []
    for tail in tails:
        low, high = (mean - QUANTILE_RANGE_SDS * sd).amin(0), (mean + QUANTILE_RANGE_SDS * sd).amax(0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = normal.cdf(middle).mean(0) < tail
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        ends.append((low + high) / 2)
    return torch.stack(ends)
