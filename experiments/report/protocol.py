"""`hierfl protocol`: finished runs with test labels of other shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.chunk_size import suitable_chunk
from hierfl.inference.evaluation.protocols import evaluate_protocols
from hierfl.inference.run.progress import working

from ..run_folder.config_file import read_config
from ..run_folder.csv_files import write_rows
from ..run_folder.layout import lock_run_folder
from ..run_folder.resume import relocate, restore
from ..run_folder.summary import read_summary

#: of a run's own table, in its folder
FILE = "protocols.csv"
#: settings that make another method of one
DISTINGUISH = ("prior", "shares", "heads")


def run_under_protocols(
    folder: Path, protocols: Sequence[str], location: Mapping[str, Any], progress: bool, *, seed: int = 0,
    offset: bool = False, trust_code: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of a run's table, which is written into its folder.

    Args:
        folder: of a finished run.
        protocols: see :mod:`hierfl.inference.evaluation.test_rows`.
        location: where the data are, if elsewhere: data, data_root.
        progress: whether to show what takes its time.
        seed: of the test rows.
        offset: adds rows of the global model with an offset for label shares.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Raises:
        UserError: for a folder that is no finished run with a network on labels, and as
            :func:`~hierfl.inference.evaluation.protocols.evaluate_protocols`.
    """
    config = relocate(read_config(folder), location)
    summary = read_summary(folder)
    if summary["pm_accuracy"] is None:
        raise UserError(f"{folder}: protocols are of test labels, and the run has none")
    ready, name = restore(folder, config, progress, trust_code)
    with working("reading the checkpoint", progress):
        run = ready.run(folder / "checkpoint", resume=True, progress=False)
    numbers = sum(v[0].numel() for v in {**run.fitted.copies, **run.fitted.personal}.values())
    chunk = run.options.chunk or suitable_chunk(run.fitted.federation, numbers)
    draws = run.options.draws if run.random else 0
    with working("evaluating", progress):
        rows_of_protocols = evaluate_protocols(
            run.fitted, protocols, draws=draws, seed=seed, offset=offset, chunk=chunk
        )
    setting = " ".join(f"{key}={value}" for key, value in config.settings.items() if key in DISTINGUISH)
    rows = [{"method": name, "setting": setting, "seed": config.run.seed, **row} for row in rows_of_protocols]
    with lock_run_folder(folder):
        write_protocols(folder / FILE, rows)
    return rows


def write_protocols(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table of some runs."""
    write_rows(path, list(rows[0]), list(rows))
