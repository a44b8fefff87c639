"""What a configuration describes: federation, network, method, options."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from hierfl.data import tables
from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.data.formula import gate
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.missing import whole_rows
from hierfl.data.formula.own_numbers import joined
from hierfl.data.formula.parsed import OWN_FORMULAS
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.data.formula.rowless import written
from hierfl.data.input_scales import OF_A_FILE, standardised, warn_of_unscaled
from hierfl.data.partition.spec import parse as parse_split
from hierfl.data.patients import beyond_words, within_cap
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.method.capabilities import reads_columns
from hierfl.inference.method.settings import applicable
from hierfl.inference.options import Options
from hierfl.inference.run.fit import EngineMaker, Fit
from hierfl.nn.architecture import Architecture

from . import methods
from .columns import NETWORK, from_columns
from .config import Configuration, RunConfig
from .own_folder import from_own_folder, is_own_folder
from .own_table import from_network_table, network_of

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.data.formula.missing import Missing
    from hierfl.data.formula.parsed import Formula

log = logging.getLogger("hierfl")


def build(
    config: Configuration, loaded: methods.Loaded | None = None, engine: EngineMaker = PlateEngine
) -> tuple[Fit, str]:
    """The fit that a configuration describes, checked and ready, and the method's name.

    Args:
        config: how it is run, and its settings.
        loaded: its method; None for one that was named in this command.
        engine: where the clients are.
    """
    run = config.run
    options_of(config)  # out of range? say so before anything is loaded
    loaded = loaded or methods.load(run.method, run.model)
    federation, network = _data(run, loaded)
    if run.ood:
        ood_inputs(run, federation)  # not there, or of another shape? say so before anything is fitted
    try:
        method = loaded.cls(network, **applicable(loaded.cls, config.settings))
        return Fit(method, federation, options_of(config), engine), loaded.name
    except UserError:
        raise
    except Exception as error:
        if loaded.reference in methods.METHODS:
            raise  # a fault of ours: show all of it
        raise UserError(f"{loaded.source} does not run: {methods.blame(loaded.source, error)}") from error


def _data(run: RunConfig, loaded: methods.Loaded) -> tuple[Federation, Architecture]:
    _check_kind(run, loaded)
    if not tables.is_table(run.data):
        return _from_pool(run, loaded.cls.latent)
    if run.y is not None:
        return from_network_table(run, loaded.cls.latent)
    if not reads_columns(loaded.cls):
        return _from_table(run)
    try:
        return from_columns(run, loaded)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{loaded.source} does not run: {methods.blame(loaded.source, error)}") from error


def _check_kind(run: RunConfig, loaded: methods.Loaded) -> None:
    """Refuses data of another kind than the configuration's: its ``data`` was changed, and its other entries were not.

    Raises:
        UserError: for a table that nothing describes, and for arrays with a table's entries.
    """
    of_table = run.formula is not None or run.y is not None or reads_columns(loaded.cls)
    if tables.is_table(run.data) != of_table:
        kinds = ("a table", "arrays")[:: 1 if of_table else -1]
        raise UserError(f"this configuration is of {kinds[0]}, and {run.data} is {kinds[1]}: start a new run of them")


def _from_pool(run: RunConfig, latent: bool) -> tuple[Federation, Architecture]:
    if is_own_folder(run.data):
        federation = from_own_folder(run)
        return federation, network_of(run, federation, latent)
    pool = registry.load(run.data, Path(run.data_root), run.seed)
    pool = standardised(pool, {"yes": True, "no": False}.get(run.standardise, "auto"))
    if run.standardise == "auto":
        warn_of_unscaled(pool, OF_A_FILE)
    clients = run.clients
    parse_split(run.split)
    if not clients and not run.split.startswith("natural"):
        raise UserError(f"say how many clients share {pool.name}: --clients J")
    federation = Federation.from_pool(
        pool, clients, run.split, validation=run.validation_fraction, seed=run.seed, validation_of=run.validation_of
    )
    return federation, network_of(run, federation, latent)


#: strange inputs that every client's model is shown
OOD_INPUTS = 1000


def ood_inputs(run: RunConfig, federation: Federation) -> np.ndarray | None:
    """Test inputs of the data set ``ood``, raw, at most :data:`OOD_INPUTS`, the same each time; None without one.

    They are standardised as the federation's own are: a model is shown them as if they were its data.

    Raises:
        UserError: where they cannot be the inputs of this federation's models.
    """
    if not run.ood:
        return None
    if federation.task != "classification":
        raise UserError("--ood asks for predictive entropies, which are a classification's")
    if run.ood == run.data:
        raise UserError(f"--ood {run.ood} is what the models are made for: say another data set")
    pool = registry.load(run.ood, Path(run.data_root))
    if pool.x_test.shape[1:] != federation.event_shape or (pool.x_test.dtype == np.uint8) != (
        federation.x.dtype == torch.uint8
    ):
        raise UserError(
            f"inputs of {pool.name} have shape {pool.x_test.shape[1:]}, not {tuple(federation.event_shape)}"
        )
    order = np.random.default_rng(0).permutation(len(pool.x_test))[:OOD_INPUTS]
    return pool.x_test[np.sort(order)]


def _from_table(run: RunConfig) -> tuple[Federation, Architecture]:
    assert run.formula is not None  # as of every run on a table
    assert run.test_fraction is not None
    reading = Reading.from_table(run.reading)
    formula = joined(run.formula, {name: getattr(run, name) or None for name in OWN_FORMULAS})
    terms = _parsed(formula, run.data, reading)
    roles = ("known_se", "event", "weights", "precision_weights", "correlation")
    more = {name: getattr(run, name) or "" for name in roles}
    beside = RowColumns(**more)
    used = {*(terms.response or ()), *terms.predictors, *beside.columns - beside.groups}
    patient = run.patient or ""
    if patient and run.dp != "site":
        raise UserError(f"--patient {patient} says whom noise hides: --dp site --epsilon E as well")
    df = tables.read(
        run.data, used, terms.places | beside.groups | ({patient} - {""}), split=terms.split, reading=reading
    )
    beyond = 0
    if patient:
        kept = _counting(df, patient, terms.levels(run.group or None).client, used, run)
        beyond, df = int((~kept).sum()), df[kept].reset_index(drop=True)
    federation, design = from_formula(
        df, formula, family=run.family or "", client=run.group or None, **more,
        na=cast("Missing", run.na or "refuse"), spellings=run.spellings or "keep",
        test=run.test_fraction, validation=run.validation_fraction, seed=run.seed,
    )  # fmt: skip
    facts = {**federation.about, "data": tables.stem(run.data), "split": formula}
    facts |= {"reader_record": written(facts["reader"], df, facts["reader"].places.levels.client)}
    return replace(federation, about={**facts, "beyond": beyond} if beyond else facts), design


def _counting(df: pd.DataFrame, patient: str, client: str, used: set[str], run: RunConfig) -> np.ndarray:
    """Which rows of a table count, (n,): of each patient of a client the first ones that lack no value, or lack one."""
    whole = whole_rows(df, sorted(used - {""})) if run.na == "drop" else np.ones(len(df), bool)
    kept = np.ones(len(df), bool)
    kept[whole] = within_cap(df[whole], [client, patient], run.patient_rows)
    if beyond := int((~kept).sum()):
        log.warning("%s", beyond_words(beyond, patient, run.patient_rows))
    return kept


def _parsed(formula: str, data: str, reading: Reading) -> Formula:
    """A formula that has passed the gate; the message for another one knows the columns of a table that can be read."""
    try:
        return gate.parse(formula)
    except UserError as refused:
        try:
            columns = [str(name) for name in tables.read(data, reading=reading).columns]
        except UserError:
            raise refused from None
        return gate.parse(formula, columns)


def options_of(config: Configuration) -> Options:
    """How a configuration is run."""
    run = config.run
    given = run.fit_options()
    if tables.is_table(run.data) and run.y is None:
        # a statistician's digits; and where no rows are held out, the fit itself
        held_out = ("test",) if run.test_fraction else ("train",)
        given |= {"dtype": torch.float64, "splits": () if run.network == NETWORK else held_out}
    return Options(**given)
