"""The file of first weights that all sites of a study agree on: beside study.toml, and known by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hierfl.errors import UserError
from hierfl.nn.networks.weights import read_weights


def weights_entries(path: Path, out: Path) -> dict[str, str]:
    """The entries of study.toml for a file of weights.

    Args:
        path: of the file.
        out: where study.toml will be written.

    Raises:
        UserError: where the file is not beside it, or is no file of weights.
    """
    read_weights(path)
    if path.parent.resolve() != out.parent.resolve():
        raise UserError(f"{path} has to lie beside {out}: every site needs both")
    return {"weights_file": path.name, "weights_digest": digest_of(path)}


def digest_of(path: Path) -> str:
    """SHA-256 of a file, the first 32 digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def agreed_weights(entries: Mapping[str, Any], path: Path) -> dict[str, torch.Tensor] | None:
    """The tensors of a study's file of weights; None where it has none.

    Args:
        entries: the part "data" of study.toml.
        path: of study.toml.

    Raises:
        UserError: for a file that is not beside it, or is another than the one that was agreed on.
    """
    name = entries.get("weights_file")
    if (name is None) != ("weights_digest" not in entries):
        raise UserError(f"{path}: weights_file and weights_digest belong together")
    if name is None:
        return None
    if Path(name).name != name:
        raise UserError(f"{path}: the file of weights is beside it, not at {name!r}")
    file = path.parent / name
    if not file.is_file():
        raise UserError(f"no file {file}: the study's network begins with its weights, and it lies beside study.toml")
    if digest_of(file) != entries["weights_digest"]:
        raise UserError(f"{file} is not the file of weights that {path} agreed on")
    return read_weights(file)
