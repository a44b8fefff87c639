"""What files hold, as flat dicts {path of a key: value or array}."""

from __future__ import annotations

import csv
import html
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from golden_names import HTML

#: in a folder of golden runs: where it was when they were run
ROOT = "_data/root.txt"


def contents(path: Path, root: str) -> dict[str, Any]:
    """A file's values, by the path of their keys; the folder that everything was written in is called OUT."""

    def moved(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == object:
            return np.array([moved(v) for v in value.flat], dtype=object).reshape(value.shape)
        return value.replace(root, "OUT") if isinstance(value, str) else value

    return {key: moved(value) for key, value in READERS.get(path.suffix, _text)(path).items()}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists with dots in between; what is empty is itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {}
    for key, inner in items:
        found |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found or {prefix: value}


def _toml(path: Path) -> dict[str, Any]:
    return flat(tomllib.loads(path.read_text()))


def _json(path: Path) -> dict[str, Any]:
    return flat(json.loads(path.read_text()))


def _csv(path: Path) -> dict[str, Any]:
    """A column of text, as it was written; and the order of columns."""
    rows = list(csv.reader(path.read_text().splitlines()))
    if not rows:
        return {"(empty)": ""}
    columns = {name: [row[k] for row in rows[1:]] for k, name in enumerate(rows[0])}
    return {name: np.array([cell or "nan" for cell in cells], dtype=object) for name, cells in columns.items()}


def _netcdf(path: Path) -> dict[str, Any]:
    import h5netcdf

    found: dict[str, Any] = {}

    def walk(group: Any, prefix: str) -> None:
        found.update({f"{prefix}@{k}": _plain(v) for k, v in group.attrs.items()})
        for name, variable in group.variables.items():
            key = f"{prefix}/{name}"
            found[key], found[f"{key}.dims"] = np.asarray(variable[...]), ",".join(variable.dimensions)
            found.update({f"{key}@{k}": _plain(v) for k, v in variable.attrs.items()})
        for name, inner in group.groups.items():
            walk(inner, f"{prefix}/{name}" if prefix else name)

    with h5netcdf.File(path, "r") as file:
        walk(file, "")
    return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else np.asarray(value)


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


def _npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _png(path: Path) -> dict[str, Any]:
    from PIL import Image

    with Image.open(path) as picture:
        return {"pixels": np.asarray(picture)}


def _html(path: Path) -> dict[str, Any]:
    """Its pieces between tags, white space as browsers see it, without what HTML takes out."""
    text = path.read_text()
    for pattern, _ in HTML:
        text = re.sub(pattern, "", text)
    pieces = (html.unescape(piece) for piece in re.split(r"(<[^>]*>)", text))
    return {"pieces": np.array([p for piece in pieces if (p := " ".join(piece.split()))], dtype=object)}


def _text(path: Path) -> dict[str, Any]:
    return {f"line {k}": line for k, line in enumerate(path.read_text().splitlines(), start=1)}


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".toml": _toml, ".json": _json, ".csv": _csv, ".nc": _netcdf, ".safetensors": _safetensors, ".npz": _npz,
    ".png": _png, ".html": _html,
}  # fmt: skip
