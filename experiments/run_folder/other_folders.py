"""What a folder or a file is that is not a run's: commands that want a run say so, and name the one that takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.files import is_leftover

#: {file: what a folder with it is, and what takes it}; the first that is there counts
_MARKS: Mapping[tuple[str, ...], str] = {
    ("status.json", "study.toml"): (
        "is the folder of a study's server: hierfl federate status takes it, effects.csv or metrics.csv in it has the "
        "results, and each site predicts and reports from its own folder"
    ),
    ("site.toml", "study.toml"): (
        "is a site's part of one study: hierfl predict and hierfl report take the site's own folder, two levels above, "
        "with --study NAME"
    ),
    ("site.key",): (
        "is a site's or a coordinator's own folder: hierfl predict and hierfl report take a site's, and "
        "hierfl federate audit shows its log"
    ),
    ("studies",): "is a site's own folder without its key: copy the whole folder",
    ("comparison.json",): "is a comparison: hierfl report takes it",
    ("ablation.json",): "is an ablation of models, whose table is ablation.json: hierfl ablate writes it",
    ("comparison/comparison.json",): "is an ablation: hierfl ablation-table takes it",
    ("table.json",): "is the folder of a table, which is table.md: each of its runs is a folder in it",
    ("sbc.json",): "is a calibration of a model, whose result is sbc.json: hierfl sbc writes it",
    ("replicates.json",): "is a calibration of a model that has not ended: hierfl sbc goes on with it",
}
#: {entries of a toml file: what it is, and what takes it}
_FILES: Mapping[frozenset[str], str] = {
    frozenset(("method_digest", "clients")): (
        "is a study's file: hierfl federate check shows it, and hierfl federate server and approve take it"
    ),
    frozenset(("title",)): "is the file of a table: hierfl table takes it",
    frozenset(("least_rows", "least_cell")): "is a site's policy: hierfl federate approve reads it",
}


def what_it_is(folder: Path) -> str:
    """What a folder without config.toml is, as the end of a message; empty where nothing is known of it."""
    if folder.is_file():
        inside = " inside a run's folder" * (folder.parent / "config.toml").is_file()
        return f"is a file{inside}, and no folder" + (f": say {folder.parent}" if inside else "")
    if not folder.is_dir():
        return ""
    for names, words in _MARKS.items():
        if all((folder / name).exists() for name in names):
            return words
    entries = sorted(folder.iterdir())
    if entries and all(map(is_leftover, entries)):
        return f"has no config.toml; a start that failed has left it: begin again with --out {folder} --overwrite"
    if runs := [path.name for path in entries if (path / "config.toml").is_file()]:
        several = f"holds {len(runs)} runs: say one of them, such as"
        return f"{several if len(runs) > 1 else 'holds a run: say'} {folder / runs[0]}"
    return ""


def what_file(entries: Mapping[str, Any]) -> str:
    """What a toml file without a run's entries is, as the end of a message; empty where nothing is known of it."""
    return next((words for names, words in _FILES.items() if names <= entries.keys()), "")
