"""A complete configuration from what was said and, where nothing was, what is usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierfl import datasets, tables
from hierfl.datasets import ARRAYS
from hierfl.errors import UserError
from hierfl.foreign import located, regular_file
from hierfl.inference.method import applicable, make_settings
from hierfl.inference.options import MAX_MESSAGE_RATIO

from . import methods
from .build import options_of
from .run_folder.config_file import OF_TABLES

OF_POOLS = ("clients", "split", "network", "noise", "ood")


def configure(method: str, data: str | None, given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration from what was said and, where nothing was, the data set's and method's own choices.

    Args:
        method: name or path.
        data: data set, ``.npz`` or table; None for the method's usual one.
        given: clients, split, rounds, ... as said on the command line; None where nothing was.
        settings: the method's settings as said.

    Returns:
        Tables "run" and "settings", as they go to config.toml.

    Raises:
        UserError: for anything that cannot be used.
    """
    empty = [name for name, value in {"data": data, **given}.items() if value == ""]
    if empty:
        raise UserError(f"--{empty[0].replace('_', '-')} is empty; leave it out for what is usual")
    loaded = methods.load(method)
    data = data or ("radon-like" if loaded.cls.tabular else "digits")
    default, said = datasets.defaults(data), {k: v for k, v in given.items() if v is not None}
    _check_kind(loaded, data, said)
    run = {
        "method": loaded.reference,
        "method_digest": loaded.digest,
        "data": absolute_path("data", data),
        "data_root": absolute_path("data_root", said.get("data_root", "data")),
        "clients": said.get("clients", default.clients),
        "split": said.get("split", default.split or "natural"),
        "validation": said.get("validation", 0.1),
        "network": said.get("network", default.network),
        "noise": said.get("noise", default.noise),
        "rounds": said.get("rounds", default.rounds),
        "participation": said.get("participation", default.participation),
        "evaluate_every": said.get("evaluate_every", default.evaluate_every),
        "quorum": said.get("quorum", default.quorum),
        "max_message_ratio": said.get("max_message_ratio", MAX_MESSAGE_RATIO),
        "idle": said.get("idle", "train"),
        "ood": absolute_path("ood", said.get("ood", "")),
        "draws": said.get("draws", 20),
        "observed_data": said.get("observed_data", True),
        "seed": said.get("seed", 0),
        "device": said.get("device", "cpu"),
        "chunk": said.get("chunk", default.chunk),
    }
    if tables.is_table(data):
        run |= _table_options(data, said)
    if "prior" in settings and "prior" not in loaded.cls.Settings.__dataclass_fields__:
        raise UserError(f"{loaded.name} has no prior to choose")
    shipped, chosen = methods.shipped_settings(loaded.name, data)
    # (what was chosen for one prior may say nothing under another)
    values = make_settings(loaded.cls, {**applicable(loaded.cls, shipped, settings), **settings})
    if chosen:
        ours = make_settings(loaded.cls, applicable(loaded.cls, shipped, {}))
        other = [f"{k}={getattr(values, k)}" for k in settings if getattr(values, k) != getattr(ours, k)]
        run["settings_chosen"] = chosen + (f"; other than that, as said: {', '.join(other)}" if other else "")
    if said.get("clients", 1) < 1:
        raise UserError(f"a federation needs at least one client, not {run['clients']}")
    config = {"run": run, "settings": {k: getattr(values, k) for k in values.__dataclass_fields__}}
    options_of(config)  # out of range? say so before anything is loaded
    return config


def parse_settings(pairs: Sequence[str], prior: str | None = None) -> dict[str, str]:
    """Settings as KEY=VALUE, and what --prior says.

    Raises:
        UserError: for another form, or one that is set twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"settings are said as KEY=VALUE, not {pair!r}")
        if key in settings or (key == "prior" and prior is not None):
            raise UserError(f"{key} is set twice")
        settings[key] = value
    return settings if prior is None else {**settings, "prior": prior}


def absolute_path(option: str, value: Any) -> Any:
    """Paths of data as they are kept in a configuration: a data set's name stays."""
    if option == "data_root":
        return str(located(value))
    if option in ("data", "ood") and str(value).endswith((".npz", ".csv")):
        is_table = str(value).endswith(".csv")
        return str(regular_file(value, "a .csv with a header" if is_table else f"an .npz with {', '.join(ARRAYS)}"))
    return value


def _check_kind(loaded: methods.Loaded, data: str, said: Mapping[str, Any]) -> None:
    """A table for methods that read formulas, arrays for the others, and the options that belong to each."""
    table = tables.is_table(data)
    if table != loaded.cls.tabular:
        wanted = f"a table: FILE.csv, {', '.join(tables.TABLES)}" if loaded.cls.tabular else "a data set or FILE.npz"
        raise UserError(f"{loaded.name} needs {wanted}; not {data}")
    for name in OF_POOLS if table else OF_TABLES:
        if name in said:
            kind = "a table's, and this is a data set" if not table else "a data set's, and this is a table"
            raise UserError(f"--{name} is {kind}")


def _table_options(data: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a run on a table is configured by."""
    named = tables.TABLES.get(data)
    formula = said.get("formula", named.formula if named else None)
    if formula is None:
        raise UserError(f"say what to fit to {data}: --formula 'y ~ 1 + x + (1 + x | site)'")
    return {
        "clients": 0, "split": "natural", "validation": said.get("validation", 0.0), "network": "design",
        "formula": formula,
        "client": said.get("client", named.client if named and "formula" not in said else ""),
        "family": said.get("family", named.family if named else "gaussian"),
        "error": said.get("error", named.error if named else ""),
        "test": said.get("test", 0.0),
        "rounds": said.get("rounds", named.rounds if named else 80),
        "chunk": said.get("chunk", 1000),  # rows are short: many of them at once
        "evaluate_every": said.get("evaluate_every", 10),
    }  # fmt: skip
