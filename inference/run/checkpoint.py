"""Checkpoints: safetensors for tensors, json for the rest, nothing unpickled, nothing half written.

A checkpoint is two files: ``state-ROUND.safetensors`` and ``checkpoint.json``, which names it with its digest. Both
are written under a temporary name and renamed, the json last: at every moment the json on disk describes a state
that is complete. The json holds a checksum of itself, so that damage that still parses is noticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hierfl.errors import UserError
from hierfl.files import replacing, sync_folder, write_whole
from hierfl.schema import Number, Schema, check, read_json

from ..state import State

#: 1 had other names of states, 2 other random numbers
FORMAT = 3
#: what checkpoint.json must hold, whatever else is in it
RECORD: Schema = {"round": Number(int, 0), "state": str, "digest": str, "checksum": str}


def save(folder: Path, state: State, entries: dict[str, Any]) -> None:
    """Writes a checkpoint into ``folder``, replacing the one that is there.

    Args:
        folder: made if missing.
        state: {name: tensor}, any device.
        entries: json values, among them "round".
    """
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    target = folder / f"state-{entries['round']:06d}.safetensors"
    try:
        with replacing(target) as part:
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, part)
            digest = _digest(part)
    except SafetensorError as error:  # a full disk, for one
        raise OSError(f"{target} cannot be written: {error}") from error
    record = {**entries, "format": FORMAT, "state": target.name, "digest": digest}
    record["checksum"] = _checksum(record)
    write_whole(folder / "checkpoint.json", (json.dumps(record, indent=1) + "\n").encode())
    for old in folder.glob("*state-*.safetensors*"):
        if old.name != target.name:
            old.unlink()


def load(folder: Path) -> tuple[State, dict[str, Any]]:
    """Reads a checkpoint.

    Returns:
        The tensors (on the CPU) and the record.

    Raises:
        UserError: if there is none, or it is damaged or not one of ours.
    """
    record = read_record(folder)
    state = folder / Path(record["state"]).name
    if not state.is_file():
        raise UserError(f"checkpoint {folder} lacks {state.name}")
    if _digest(state) != record["digest"]:
        raise UserError(f"{state} is truncated or has been changed: it does not match checkpoint.json")
    try:
        return load_file(state), record
    except SafetensorError as error:
        raise UserError(f"{state} is no safetensors file: {error}") from error


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint's tensors.

    Raises:
        UserError: if there is no checkpoint, or its json is damaged or not one of ours.
    """
    path = folder / "checkpoint.json"
    if not path.is_file():
        raise UserError(f"no checkpoint in {folder}")
    record = read_json(path)
    if record.get("format") != FORMAT:
        raise UserError(f"{path} is no hierfl checkpoint of format {FORMAT}")
    check(record, RECORD, path)
    if record["checksum"] != _checksum(record):
        raise UserError(f"{path} has been changed: it does not match its checksum")
    return record


def _checksum(record: dict[str, Any]) -> str:
    """The checksum of a record without its checksum."""
    rest = {k: v for k, v in record.items() if k != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
