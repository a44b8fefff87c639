"""Every number in the files of a folder, by the file: what a walk finds of single rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
from safetensors.numpy import load_file

NUMBER = re.compile(r"-?[0-9]+\.[0-9]+")


def arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a file, by name: of a table its columns, of json its lists, of text all its numbers in one."""
    if path.suffix == ".nc":
        with h5netcdf.File(path, "r") as file:
            for group in file.groups.values():
                yield from ((f"{group.name}/{name}", np.asarray(v[...])) for name, v in group.variables.items())
    elif path.suffix == ".safetensors":
        yield from load_file(path).items()
    elif path.suffix == ".csv":
        head, *lines = csv.reader(path.read_text(encoding="utf-8").splitlines()) if path.stat().st_size else [[]]
        yield from ((name, np.array([line[k] for line in lines])) for k, name in enumerate(head))
    elif path.suffix == ".json":
        yield from _lists(json.loads(path.read_text(encoding="utf-8")), "")
    elif path.suffix in (".toml", ".html", ".jsonl", ".log", ".md"):
        text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", path.read_text(encoding="utf-8"))
        yield "its numbers", np.array(NUMBER.findall(text))


def _lists(value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _lists(inner, f"{name}.{key}")
    elif isinstance(value, list):
        if not any(isinstance(inner, dict | list) for inner in value):
            yield name, np.array(value)
        else:
            yield f"{name}[]", np.zeros(len(value))
            for inner in value:
                yield from _lists(inner, name)


def of_rows(folder: Path, sizes: set[int], responses: np.ndarray) -> list[str]:
    """What files of a folder hold of single rows, in words; nothing where they hold none.

    Args:
        folder: the folder.
        sizes: lengths that only arrays with an entry for each row have.
        responses: (N,), numbers that occur as responses alone.
    """
    words, leaks = {f"{value:.10g}" for value in responses}, []
    numbers = np.concatenate([responses, responses.astype(np.float32).astype(float)])
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".png"):
        for name, value in arrays(path):
            location = f"{path.relative_to(folder)}: {name}"
            if name != "its numbers" and sizes & set(value.shape):
                leaks.append(f"{location} is {value.shape}")
            if value.dtype.kind == "f" and np.isin(value, numbers).any():
                leaks.append(f"{location} has a response")
            if value.dtype.kind == "U" and words & set(value.ravel().tolist()):
                leaks.append(f"{location} has a response")
    return leaks
