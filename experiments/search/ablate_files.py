"""`hierfl ablate A.py B.py`: named alternatives of one model on the same table.

Each is fitted to the same rows and compared by the log predictive density of rows that it has not seen: leave-one-out,
or rows that are held out. Everything is in one folder, and a fit that is there is not run again:

    NAME.json       a model's densities, row by row
    ablation.json   the table
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hierfl.data import tables
from hierfl.data.column_federation import column_federation
from hierfl.data.column_table import outline
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole

from ..config import flag
from ..messages import to_stderr
from ..methods import Loaded, load
from .sbc import model_of

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.method.capabilities import ReadsColumns
    from hierfl.models.any_model.alternatives import Difference, Scored

#: options of a run that say something here
APPLICABLE_OPTIONS = ("group", "rounds", "test_fraction", "spellings", "na", "reading", "device")
#: the file of the table
RESULT = "ablation.json"


def ablate_files(
    references: Sequence[str], data: str | None, given: Mapping[str, Any], settings: Mapping[str, str], folder: Path,
    progress: bool = True,
) -> tuple[list[Difference], list[Scored]]:  # fmt: skip
    """Fits and compares; see the module.

    Args:
        references: model files, each of its own name.
        data: the table.
        given: run options, of which :data:`APPLICABLE_OPTIONS` say something.
        settings: of the fits, the same for all.
        folder: of all of it.
        progress: whether to show the fits.

    Returns:
        The comparison, best first; and what is known of each model, in the order given.

    Raises:
        UserError: for models that cannot be compared on these rows.
    """
    if other := [name for name in given if name not in APPLICABLE_OPTIONS]:
        raise UserError(f"{flag(other[0])} is not for alternatives of a model: they are fitted once, to all rows")
    loaded = [load(reference) for reference in references]
    names = [alternative.name for alternative in loaded]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two models are called {twice}: name their files differently")
    models = {alternative.name: model_of(alternative) for alternative in loaded}
    if data is None:
        raise UserError("say the table that the models are fitted to: --data FILE.csv")
    named = tables.TABLES.get(data)
    group = given.get("group") or (named.client if named else None)
    if group is None:
        raise UserError(f"say which column of {data} names the clients: --group COLUMN")
    share = float(given.get("test_fraction") or 0.0)
    if not 0 <= share < 1:
        raise UserError(f"--test-fraction is from 0 to 1, not {share:g}")
    df, columns = _table(models, data, group, given)
    _comparable(models, df, group, columns, held_out=share > 0)
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / f"{n}.json").is_file() for n in names):
        raise UserError(f"{folder} is not the folder of this ablation; choose another --out")
    from hierfl.models.any_model.alternatives import differences, split_rows

    train, held_out = split_rows(df, group, share, 0) if share else (df, None)
    scores = []
    for alternative in loaded:
        to_stderr(progress)(f"{alternative.name}")
        own = alternative.name
        scores.append(_scored(alternative, models[own], (train, held_out, group), columns[own], given, settings,
                             folder, progress))  # fmt: skip
    compared = differences(scores)
    record = {"data": data, "group": group, "held_out": share, "models": [asdict(row) for row in compared]}
    write_whole(folder / RESULT, (json.dumps(record, indent=1) + "\n").encode())
    return compared, scores


def _table(
    models: Mapping[str, Any], data: str, group: str, given: Mapping[str, Any]
) -> tuple[pd.DataFrame, dict[str, tuple[str, ...]]]:
    """Rows that all models can read, and which columns each of them reads."""
    from hierfl.data.formula.missing import whole_rows
    from hierfl.models.any_model.columns import columns_read

    reading = Reading.from_table(given.get("reading"))
    outlined = outline(tables.read(data, text={group}, reading=reading), group)
    columns = {name: columns_read(model, outlined) for name, model in models.items()}
    union = [name for name in outlined.columns if any(name in read for read in columns.values())]
    df = tables.read(data, set(union), {group}, reading=reading)
    if given.get("na") == "drop":
        # Of all models' columns: they shall have the same rows.
        df = df[whole_rows(df, union)].reset_index(drop=True)
    if not len(df):
        raise UserError("every row lacks a value of a column that a model reads: none would be left")
    return df[[group, *union]], columns


def _comparable(
    models: Mapping[str, Any], df: pd.DataFrame, group: str, columns: Mapping[str, tuple[str, ...]], *, held_out: bool
) -> None:
    """Models whose rows have no densities, or densities of different responses, cannot be compared.

    Raises:
        UserError: for such a model, and where it is known of two models that they observe different columns.
    """
    import torch

    from hierfl.models.any_model.alternatives import refuse_rows
    from hierfl.models.any_model.look import whole
    from hierfl.models.any_model.sbc.simulate import observed_cells

    observed_by: dict[str, list[str]] = {}
    for name, model in models.items():
        federation, design = column_federation(df, group, columns[name], "keep")
        rows = whole(design, federation.to(dtype=torch.float64).batch([0]))[0]
        refuse_rows(name, model, design, rows, held_out=held_out)
        try:
            observed_by[name] = sorted({cells.column for cells in observed_cells(model, design, rows).values()})
        except UserError:  # a factor, or a transformed column: what it observes is not known
            continue
    first = next(iter(observed_by), "")
    for name, observed in observed_by.items():
        if observed != observed_by[first]:
            raise UserError(
                f"{first} observes {', '.join(observed_by[first])}, and {name} observes {', '.join(observed)}: their "
                "densities are of different data, and cannot be compared"
            )


def _scored(
    alternative: Loaded, model: Any, rows: tuple[pd.DataFrame, pd.DataFrame | None, str], columns: tuple[str, ...],
    given: Mapping[str, Any], settings: Mapping[str, str], folder: Path, progress: bool,
) -> Scored:  # fmt: skip
    """A model's densities: those of the folder, or of a fit."""
    from hierfl.inference.method.settings import make_settings
    from hierfl.models.any_model.alternatives import Scored, scored
    from hierfl.models.any_model.fit_model import fit_model

    train, held_out, group = rows
    rounds = given.get("rounds", cast("ReadsColumns", alternative.cls).usual_rounds)
    spellings = given.get("spellings", "refuse")
    federation, _ = column_federation(train, group, columns, spellings)
    path = folder / f"{alternative.name}.json"
    question = {
        "digest": alternative.digest, "rows": federation.digest(), "settings": dict(settings),
        "held_out": 0 if held_out is None else len(held_out), "rounds": rounds,
    }  # fmt: skip
    if path.is_file():
        try:
            record = json.loads(path.read_text())
            if record["question"] == question:
                return Scored(**record["scored"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no file of an ablation: {error}") from error
        raise UserError(f"{path} is of another model, table or setting; choose another --out")
    own = getattr(alternative.cls, "guide_function", None)
    how = asdict(make_settings(alternative.cls, settings)) | ({} if own is None else {"guide": own})
    fitted = fit_model(
        model, federation, group=group, rounds=rounds, device=given.get("device", "cpu"),
        progress=progress, **how,
    )  # fmt: skip
    score = scored(alternative.name, fitted, held_out, group)
    make_folder(folder)
    write_whole(path, (json.dumps({"question": question, "scored": asdict(score)}) + "\n").encode())
    return score
