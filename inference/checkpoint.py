"""Checkpoints: safetensors for tensors, json for the rest, nothing unpickled, nothing half written.

A checkpoint is two files: ``state-ROUND.safetensors`` and ``checkpoint.json``, which names it with its digest. Both
are written under a temporary name and renamed, the json last: at every moment the json on disk describes a state
that is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hierfl.errors import UserError

from .method import State

FORMAT = 1


def write_atomically(path: Path, data: bytes) -> None:
    """Puts ``data`` at ``path`` so that a reader, or a crash, sees either the old file or the new one."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def save(folder: Path, state: State, about: dict[str, Any]) -> None:
    """Writes a checkpoint into ``folder``, replacing the one that is there.

    Args:
        folder: made if missing.
        state: {name: tensor}, any device.
        about: json values, among them "round".
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"state-{about['round']:06d}.safetensors"
    part = folder / f".{target.name}.part"
    try:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, part)
    except SafetensorError as error:  # a full disk, for one
        raise OSError(f"{part} cannot be written: {error}") from error
    digest = _digest(part)
    os.replace(part, target)
    record = {**about, "format": FORMAT, "state": target.name, "digest": digest}
    write_atomically(folder / "checkpoint.json", (json.dumps(record, indent=1) + "\n").encode())
    for old in folder.glob("*state-*.safetensors*"):
        if old.name != target.name:
            old.unlink()


def load(folder: Path) -> tuple[State, dict[str, Any]]:
    """Reads a checkpoint.

    Returns:
        The tensors (on the CPU) and what was said about them.

    Raises:
        UserError: if there is none, or it is damaged or not one of ours.
    """
    path = folder / "checkpoint.json"
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(f"no checkpoint in {folder}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or not isinstance(record.get("round"), int):
        raise UserError(f"{path} is no hierfl checkpoint of format {FORMAT}")
    state = folder / Path(str(record.get("state"))).name
    if not state.is_file():
        raise UserError(f"checkpoint {folder} lacks {state.name}")
    if _digest(state) != record.get("digest"):
        raise UserError(f"{state} is truncated or has been changed: it does not match checkpoint.json")
    try:
        return load_file(state), record
    except SafetensorError as error:
        raise UserError(f"{state} is no safetensors file: {error}") from error


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
