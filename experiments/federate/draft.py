"""A draft of study.toml: from a method, options, and a sample file that holds no real rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w

from hierfl.data import tables
from hierfl.data.datasets import registry
from hierfl.data.federated.dictionary import Dictionary
from hierfl.data.formula import gate
from hierfl.data.formula.own_numbers import joined
from hierfl.data.formula.parsed import OWN_FORMULAS
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.data.npz import load_npz
from hierfl.data.reading.options import Reading
from hierfl.data.spellings import Spellings
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.method.capabilities import ReadsColumns, is_tabular, reads_columns
from hierfl.inference.method.settings import make_settings
from hierfl.responses.registry import RESPONSES

from .. import methods
from ..config import RunConfig, flag
from ..configure import learned
from .draft_model import check_options, model_parts
from .public_sums import noisy_plan
from .study import PRIVACY, Study, fit_options
from .study_format import FORMAT
from .study_weights import weights_entries

log = logging.getLogger("hierfl")
#: entries of a study with noise that say what it hides, and how surely
PROMISE = {"site": ("epsilon", "delta", "patient_rows"), "client": ("epsilon", "delta")}
#: sums that a network's inputs and responses can be standardised by
MADE_UP = {"n": 4.0, "total": 1.0, "square": 5.0}
DEFAULTS = {option.name: option.default for option in fields(RunConfig)}
#: of a formula, where nothing is said: at most, as of a table, since a study ends where its fit is done
FORMULA_ROUNDS = tables.ROUNDS
#: said above each part of the file
COMMENTS = {
    "head": "What all sites of this study agree on. Edit it, then send the same file to every site: all of it is\n"
    "compared with every request.",
    "keys": "Public cards (hierfl federate keys): of the server, and of every client before the study begins. Compare\n"
    "their fingerprints with their owners, by telephone or on paper.",
    "settings": "Of the method: see hierfl methods NAME.",
    "run": "How it is run: see hierfl run --help.",
    "data": "What every site's own file is.",
    "columns": "The data dictionary, as the sample has it. Add what the sample does not show: levels that it lacks,\n"
    "least and most of numbers (sums of squares are taken around their middle), unit, about.\n"
    "kind is number, whole, flag or category; nothing of a site leaves that does not fit.",
    "privacy": "new_clients: whether sums of what a new client begins with leave the sites (of methods with personal\n"
    "heads that is the head itself). least_rows: a site with fewer takes no part. masked: whether the server gets\n"
    "sums over all sites alone. dp: where noise is added (docs/privacy.md). delta: the chance that epsilon does not\n"
    "hold; times the patients of a site it is far below 1. patient: column of a site's table that names patients, of\n"
    "whom patient_rows rows count.",
}


def draft(
    method: str, sample: Path, clients: Sequence[str], name: str, given: Mapping[str, Any],
    settings: Mapping[str, Any], *, keys: Mapping[str, str] | None = None, x: Sequence[str] = (), y: str = "",
    out: Path,
) -> str:  # fmt: skip
    """The text of study.toml.

    Args:
        method: name, or path of a file, which has to lie beside ``out``.
        sample: FILE.csv or FILE.npz of the form that every site's file has.
        clients: the roster.
        name: of the study.
        given: options of a run that were said.
        settings: of the method, likewise.
        keys: {name: text of a public card}, of those who have one.
        x, y: columns of a network's inputs, and of what it predicts.
        out: where it will be written.

    Raises:
        UserError: for what no study could be made of.
    """
    loaded = methods.load(method, given.get("model"))
    if method.endswith(".py") and loaded.source.parent.resolve() != out.parent.resolve():
        raise UserError(f"{loaded.source} has to lie beside {out}: every site needs both")
    table: dict[str, Any] = {
        "format": FORMAT, "name": name, "method": loaded.source.name if method.endswith(".py") else loaded.reference,
        "method_digest": loaded.digest, "clients": list(clients), "keys": dict(keys or {}),
    }  # fmt: skip
    if "model" in given:
        table["model"] = given["model"]
    values = make_settings(loaded.cls, settings)
    table["settings"] = {k: getattr(values, k) for k in values.__dataclass_fields__}
    options, noisy = {k: v for k, v in given.items() if k != "model"}, given.get("dp", "none") != "none"
    plain = reads_columns(loaded.cls)
    if plain:
        check_options(loaded.name, options, (*x, y))
    if noisy and not plain:  # rows that are held out have no use there
        held_out = ("validation_fraction",) if sample.suffix == ".npz" else ("test_fraction", "validation_fraction")
        options = {**dict.fromkeys(held_out, 0.0), **options}
    reading = Reading.from_table(given.get("reading"))
    if plain:
        data, columns = model_parts(loaded, sample, options)
    else:
        data, columns = _data(is_tabular(loaded.cls), sample, options, x, y, out)
    table["run"] = _run(
        is_tabular(loaded.cls), options, cast("ReadsColumns", loaded.cls).usual_rounds if plain else FORMULA_ROUNDS
    )
    privacy = {name: options.pop(name) for name in (*PRIVACY, "patient", "most_rows") if name in options}
    if options:
        raise UserError(f"{flag(next(iter(options)))} says nothing of {sample}")
    table["data"] = data
    if columns:
        table["columns"] = _with_ranges(columns, sample, reading) if noisy else columns
    if noisy:  # all sites read what the promise is, a default too
        privacy = {
            "dp": privacy["dp"],
            **{name: privacy.get(name, DEFAULTS[name]) for name in PROMISE.get(privacy["dp"], ())},
            **privacy,
        }
    table["privacy"] = {"new_clients": False, "least_rows": 2, **privacy}
    study = Study.from_table(table, out)
    noisy_plan(study)  # what it says must be possible
    if {"head", "weights_file"} & data.keys():
        _check_network(study)
    return _written(table)


def _with_ranges(columns: Mapping[str, Any], sample: Path, reading: Reading) -> dict[str, Any]:
    """A dictionary's columns, numbers with the sample's range: with noise every number has one."""
    df = tables.read(str(sample), list(columns), reading=reading)
    ranged = {}
    for name, column in columns.items():
        if column["kind"] in ("number", "whole"):
            least, most = float(df[name].min()), float(df[name].max())
            log.warning("the range of %r is the sample's, %g to %g: edit it in study.toml", name, least, most)
            column = {**column, "least": least, "most": most} if least < most else column
        ranged[name] = column
    return ranged


def _check_network(study: Study) -> None:
    """Makes the study's method with its network and its head, from made-up sums.

    Raises:
        UserError: for a file of another network, or a method that takes no such head.
    """
    totals: list[dict[str, Any]] = []
    while len(totals) < study.data.steps:
        form = study.data.form(totals)
        totals.append({name: np.full(shape, MADE_UP[name.rpartition("_")[2]]) for name, shape in form.items()})
    study.method(study.data.model(totals, study.loaded.cls.latent)[1])


def _run(formula: bool, options: dict[str, Any], usual_rounds: int) -> dict[str, Any]:
    """Options that all agree on; what is taken is removed from ``said``."""
    rounds = options.get("rounds", usual_rounds if formula else 30)
    usual = {"rounds": rounds, "participation": 1.0, "quorum": 1, "evaluate_every": max(1, rounds if formula else 10)}
    run = {}
    for option in fit_options():
        run[option] = options.pop(option, usual.get(option, DEFAULTS.get(option)))
    return run


def _data(
    formula: bool, sample: Path, options: dict[str, Any], x: Sequence[str], y: str, out: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables "data" and "columns"."""
    if not sample.is_file():
        raise UserError(f"no file {sample}: a sample has the columns or arrays of a site's file, and no real rows")
    if not formula:
        usual = registry.defaults(str(sample)) if sample.suffix == ".npz" else None
        network = {
            "network": options.pop("network", usual.network if usual else "mlp:100"),
            **({"head": options.pop("head")} if "head" in options else {}),
            **(weights_entries(user_path(options.pop("network_weights")), out) if "network_weights" in options else {}),
            "learn_sd": learned(options.pop("learn_sd", None), options.get("response_sd")),
            "response_sd": options.pop("response_sd", 1.0),
            "validation_fraction": options.pop("validation_fraction", 0.1),
        }
    if sample.suffix == ".npz":
        if formula:
            raise UserError(f"this method needs a table, FILE.csv, not {sample}")
        pool = load_npz(sample)
        images, network = pool.x_train.dtype == np.uint8, _of_task(network, pool.task)
        entries = {"kind": "arrays", "inputs": list(pool.x_train.shape[1:]), "images": images, "classes": pool.classes}
        return {**entries, **network}, {}
    if not tables.is_table_file(str(sample)):
        raise UserError(f"a sample is FILE.csv or FILE.npz, not {sample}")
    reading = Reading.from_table(options.pop("reading", None))
    if strange := [name for name, kind in reading.types.items() if kind not in ("number", "category")]:
        raise UserError(
            f"--type {strange[0]}={reading.types[strange[0]]} says nothing to a study's sites: their files hold numbers"
        )
    spelling_choice = options.pop("spellings", None) or "refuse"
    spellings = Spellings.from_choice(spelling_choice)
    header = [str(name) for name in tables.read(str(sample), reading=reading).columns]
    if formula:
        text = options.pop("formula", "")
        if not text:
            raise UserError("say what to fit: --formula 'y ~ 1 + x + (1 + x | site)'")
        text = joined(text, {name: options.pop(name, None) or None for name in OWN_FORMULAS})
        terms = gate.parse(text, header)
        roles = ("known_se", "event", "weights", "precision_weights", "correlation")
        more = {name: options.pop(name, "") or "" for name in roles}
        beside = RowColumns(**more)
        used = beside.columns | (terms.response or frozenset()) | terms.predictors
        df = tables.read(str(sample), used, split=terms.split, reading=reading)
        sites = [group for term in terms.random for group in term.path if group not in df.columns]
        levels = terms.levels(options.pop("group", None) or (sites[0] if sites else None))
        names = sorted({*(terms.response or ()), *terms.predictors, *(beside.columns - beside.groups)} - {""})
        names += [name for name in (levels.outer,) if name]
        entries = {"kind": "formula", "formula": text, "family": options.pop("family", "gaussian"), **more,
                 "na": options.pop("na", None) or "refuse", "spellings": spelling_choice,
                 "test_fraction": options.pop("test_fraction", 0.0),
                 "validation_fraction": options.pop("validation_fraction", 0.0)}  # fmt: skip
        inside = {*levels.inner_columns, *beside.groups} - {""}
        dictionary = Dictionary.from_sample(df, names, {levels.outer}, inside, spellings)
        if entries["family"] in RESPONSES and RESPONSES[entries["family"]].ordered and len(terms.response or ()) == 1:
            dictionary = dictionary.with_order(df, *(terms.response or ()))
        return entries, dictionary.as_table()
    if not y:
        raise UserError("say which column is predicted: --y COLUMN (and --x COLUMN for each input; all others if none)")
    inputs = list(x) or [name for name in header if name != y]
    df = tables.read(str(sample), [*inputs, y], reading=reading)
    dictionary = Dictionary.from_sample(df, [*inputs, y], spellings=spellings)
    number = dictionary.columns[y].kind in ("number", "whole")
    network = _of_task(network, "regression" if number else "classification")
    entries = {"kind": "columns", "x": inputs, "y": y, **network, "test_fraction": options.pop("test_fraction", 0.2)}
    entries["spellings"] = spelling_choice
    return entries, dictionary.as_table()


def _of_task(network: dict[str, Any], task: str) -> dict[str, Any]:
    """What is said of the network, without what is a regression's for a classification.

    Raises:
        UserError: where that was asked for.
    """
    if task == "regression":
        return network
    if network["learn_sd"] == "clients":
        raise UserError("--learn-sd clients is a regression's, and this is a classification")
    return {**network, "learn_sd": "no"}


def _written(table: Mapping[str, Any]) -> str:
    """The toml, with a comment above each part."""
    simple = {k: v for k, v in table.items() if not isinstance(v, dict)}
    parts = [_comment("head") + tomli_w.dumps(simple)]
    for name, entry in table.items():
        if isinstance(entry, dict):
            parts.append(_comment(name) + tomli_w.dumps({name: entry}))
    return "\n".join(parts)


def _comment(part: str) -> str:
    return "".join(f"# {line}\n" for line in COMMENTS[part].splitlines())
