"""A complete configuration from what was said and, where nothing was, what is usual."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hierfl.data import tables
from hierfl.data.datasets import registry
from hierfl.data.npz import ARRAYS
from hierfl.data.readers.safe_files import located, regular_file
from hierfl.data.reading.options import Reading
from hierfl.data.reading.remedies import option_flags
from hierfl.data.reading.saved_set import is_saved
from hierfl.errors import UserError, unknown
from hierfl.inference.method.capabilities import is_tabular, reads_columns
from hierfl.inference.method.settings import applicable, make_settings
from hierfl.inference.tracking.tracking import tracker_names

from . import methods
from .build import options_of
from .columns import check_options, usual_of_columns
from .config import Configuration, RunConfig, flag, options
from .own_folder import check_image_size, is_own_folder
from .own_table import check_network_table, usual_of_network_table

if TYPE_CHECKING:
    from hierfl.inference import Method

#: entries that are paths
PATHS = ("data", "data_root", "ood", "network_weights")


def configure(method: str, data: str | None, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Configuration:
    """A complete configuration from what was said and, where nothing was, the data set's and method's own choices.

    Args:
        method: name or path.
        data: data set, ``.npz`` or table; None for the method's usual one.
        given: options of :class:`hierfl.experiments.config.RunConfig` as said; None where nothing was.
        settings: the method's settings as said.

    Raises:
        UserError: for anything that cannot be used.
    """
    empty = [name for name, value in {"data": data, **given}.items() if value == ""]
    if empty:
        raise UserError(f"{flag(empty[0])} is empty; leave it out for what is usual")
    loaded = methods.load(method, given.get("model"))
    data = data or usual_data(loaded.cls)
    options_given = {k: v for k, v in given.items() if v is not None}
    if strange := options_given.keys() - options():
        raise unknown("run option", min(strange), options())
    _check_kind(loaded, data, options_given)
    check_image_size(data, options_given.get("image_size"))
    if options_given.get("rows") is False and options_given.setdefault("observed_data", False):
        raise UserError(
            "--observed-data keeps responses of single rows, and --no-rows leaves them out: say one of them"
        )
    if "reading" in options_given:
        Reading.from_table(options_given["reading"])  # no such reading? say so before anything is loaded
    tracker_names(options_given.get("track"))  # no such tracker? likewise
    usual = usual_of(loaded.cls, data, options_given)
    if "learn_sd" in usual and not is_tabular(loaded.cls):
        usual["learn_sd"] = learned(options_given.get("learn_sd"), options_given.get("response_sd"), usual["learn_sd"])
    run = {"data_root": "data", **usual, **options_given, "data": data}
    run |= {name: absolute_path(name, run[name]) for name in PATHS if run.get(name)}
    run |= {"method": loaded.reference, "method_digest": loaded.digest}
    if "prior" in settings and "prior" not in loaded.cls.Settings.__dataclass_fields__:
        raise UserError(f"{loaded.name} has no prior to choose: its Settings have no field prior")
    shipped, chosen = methods.shipped_settings(loaded.name, data)
    # What was chosen for one prior may say nothing under another.
    values = make_settings(loaded.cls, {**applicable(loaded.cls, shipped, settings), **settings})
    if chosen:
        ours = make_settings(loaded.cls, applicable(loaded.cls, shipped, {}))
        other = [f"{k}={getattr(values, k)}" for k in settings if getattr(values, k) != getattr(ours, k)]
        run["settings_chosen"] = chosen + (f"; other than that, as said: {', '.join(other)}" if other else "")
        run["settings_chosen"] += _unlike_search(chosen, usual, run)
    if options_given.get("clients", 1) < 1:
        raise UserError(f"a federation needs at least one client, not {options_given['clients']}")
    config = Configuration(RunConfig(**run), {k: getattr(values, k) for k in values.__dataclass_fields__})
    options_of(config)  # out of range? say so before anything is loaded
    return config


def _unlike_search(chosen: str, usual: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """What of a run differs from the search that chose its settings, in words; empty where nothing does.

    Args:
        chosen: the record of the search, which names its rounds where they are not the data set's.
        usual: options of the data set, which the search had.
        run: those of the run.
    """
    in_words = re.search(r" of (\d[\d,]*) rounds?\b", chosen)
    rounds = int(in_words[1].replace(",", "")) if in_words else usual["rounds"]
    searched = {"network": usual["network"], "rounds": rounds}
    alike = {"network": {usual["network"]}, "rounds": {usual["rounds"], rounds}}
    different = [name for name, values in alike.items() if run[name] not in values]
    theirs, ours = (" and ".join(texts) for texts in (
        [f"{name} {searched[name]}" for name in different], [str(run[name]) for name in different]
    ))  # fmt: skip
    return f"; that search had {theirs}, not the run's {ours}" if different else ""


def parse_settings(pairs: Sequence[str], prior: str | None = None) -> dict[str, str]:
    """Settings as KEY=VALUE, and what --prior says.

    Raises:
        UserError: for another form, or one that is set twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"settings are given as KEY=VALUE, not {pair!r}")
        if key in settings or (key == "prior" and prior is not None):
            raise UserError(f"{key} is set twice")
        settings[key] = value
    return settings if prior is None else {**settings, "prior": prior}


def absolute_path(option: str, value: Any) -> Any:
    """Paths of data as they are kept in a configuration: a data set's name stays."""
    if option in ("data_root", "network_weights"):
        return str(located(value))
    if option == "data" and (is_own_folder(str(value)) or is_saved(str(value))):
        return str(located(value))
    is_table = tables.is_table_file(str(value))
    if option in ("data", "ood") and (is_table or str(value).endswith(".npz")):
        return str(regular_file(value, "a .csv with a header" if is_table else f"an .npz with {', '.join(ARRAYS)}"))
    return value


def learned(choice: str | None, response_sd: float | None, usual: str = "shared") -> str:
    """Whose standard deviation is learned of a regression's response: no client's where it is said.

    Args:
        choice: --learn-sd.
        response_sd: --response-sd.
        usual: where neither is said.

    Raises:
        UserError: for both.
    """
    if choice not in (None, "no") and response_sd is not None:
        raise UserError(
            f"--response-sd {response_sd:g} is a number, and --learn-sd {choice} learns one: say one of them"
        )
    return choice or ("no" if response_sd is not None else usual)


def _check_kind(loaded: methods.Loaded, data: str, given: Mapping[str, Any]) -> None:
    """A table for methods that read formulas, arrays for the others, and the options that belong to each."""
    table, tabular = tables.is_table(data), is_tabular(loaded.cls)
    if table and reads_columns(loaded.cls):
        check_options(loaded.name, given)
    if tabular and not table:
        raise UserError(f"{loaded.name} needs a table: FILE.csv, {', '.join(tables.TABLES)}; not {data}")
    if table and not tabular:
        return check_network_table(loaded.name, data, given)
    for name in given:
        if options()[name].data == "rows":
            whose = f"{loaded.name} has a formula or model" if table else f"{data} is no table"
            raise UserError(f"{flag(name)} is for a network's table, and {whose}")
        if options()[name].data == ("arrays" if table else "tables"):
            kind = "data sets of arrays" if table else "tables"
            shown = flag(name) if name != "reading" else option_flags(given[name])[0]
            raise UserError(f"{shown} is for {kind}, and {data} is {'a table' if table else 'not one'}")


def usual_data(cls: type[Method]) -> str:
    """The data set of a method where none is said.

    Raises:
        UserError: for a model that reads columns of a table, which is known to its user alone.
    """
    if reads_columns(cls):
        raise UserError("say which table the model reads: --data FILE.csv")
    return "radon-like" if is_tabular(cls) else "digits"


def usual_of(cls: type[Method], data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual for a method on some data, where nothing is said."""
    if not tables.is_table(data):
        return _usual_of_arrays(data)
    if reads_columns(cls):
        return {**_usual_of_arrays(data), **usual_of_columns(cls, data, given)}
    if not is_tabular(cls):
        return {**_usual_of_arrays(data), **usual_of_network_table()}
    return _usual_of_table(data, given)


def _usual_of_arrays(data: str) -> dict[str, Any]:
    """What is usual for a data set."""
    default, own = registry.defaults(data), data.endswith(".npz") or is_own_folder(data)
    return {
        "clients": default.clients, "split": default.split or "natural", "network": default.network,
        "response_sd": default.noise, "learn_sd": "shared" if own else "no", "standardise": "auto" if own else "no",
        "rounds": default.rounds, "participation": default.participation,
        "evaluate_every": default.evaluate_every, "quorum": default.quorum, "chunk": default.chunk,
    }  # fmt: skip


def _usual_of_table(data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual for a table: its own model, where it has one; rows are short, so that many go at once."""
    named = tables.TABLES.get(data)
    formula = given.get("formula", named.formula if named else None)
    if formula is None:
        raise UserError(f"say what to fit to {data}: --formula 'y ~ 1 + x + (1 + x | site)'")
    return {
        **_usual_of_arrays(data),
        "clients": 0, "split": "natural", "network": "design", "validation_fraction": 0.0, "test_fraction": 0.0,
        "rounds": tables.ROUNDS, "chunk": 1000, "evaluate_every": tables.ROUNDS,
        "formula": formula, "dispersion": "", "zero_inflation": "",
        "group": named.client if named and "formula" not in given else "",
        "family": named.family if named else "gaussian",
        "known_se": named.known_se if named else "", "event": "", "weights": "", "precision_weights": "",
        "correlation": "", "na": "refuse", "spellings": "refuse",
    }  # fmt: skip
