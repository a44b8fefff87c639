"""A grid's cells, and finished runs that are compared with them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from hierfl import UserError
from hierfl.experiments.grid import Cell, check_cell
from hierfl.experiments.run_folder.config_file import write_config


def test_a_finished_run_is_known_again_where_its_tracker_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("a", "a", "a", "fedavg", "digits", {"rounds": 1}, {}, 0)
    write_config(tmp_path, cell.config({}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    watched = replace(cell, given={**cell.given, "track": "wandb"})
    with pytest.raises(UserError, match="needs wandb"):
        watched.config({})
    check_cell(watched, tmp_path, {"track": "wandb"})
    with pytest.raises(UserError, match="rounds"):
        check_cell(replace(watched, given={"rounds": 2}), tmp_path, {})
