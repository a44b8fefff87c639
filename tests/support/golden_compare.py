"""Two folders of golden runs, compared file by file and number by number, bit for bit."""

from __future__ import annotations

import csv
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from support.golden_grid import Allowed, Grid

#: lines that a case prints at most
LINES = 12


def compare(a: Path, b: Path, grid: Grid, names: Sequence[str]) -> int:
    """Prints what differs between two folders; 1 if anything does that may not, or a case is missing."""
    bad, errors, seen, uses = 0, 0, Counter[str](), Counter[Allowed | None]()
    for name in names:
        if missing := [str(folder) for folder in (a, b) if not (folder / name / "case.json").is_file()]:
            print(f"{name}: MISSING in {' and '.join(missing)}")
            bad += 1
            continue
        differences, counts = compare_case(a / name, b / name, name, grid)
        uses.update(entry for _, entry in differences)
        different = [line for line, entry in differences if entry is None]
        rounding = [line for line, entry in differences if entry is not None and entry.relative is not None]
        error = (a / name / "error.txt").read_text() if (a / name / "error.txt").is_file() else ""
        bad, errors, seen = bad + bool(different), errors + bool(error), seen + counts
        verdict = f"DIFFERENT, {len(different)}" if different else "identical"
        print(f"{name}: {verdict}{f', {len(rounding)} rounded' * bool(rounding)} ({counts['files']} files, "
              f"{counts['numbers']} numbers) {error}".rstrip())  # fmt: skip
        for line in [*different[:LINES], *rounding[:LINES]]:
            print(f"    {line}")
        if more := sum(max(0, len(lines) - LINES) for lines in (different, rounding)):
            print(f"    ... and {more} more")
    for entry in grid.allowed:
        print(f"{entry} ({uses[entry]} times)")
    print(
        f"{len(names)} cases, {seen['files']} files, {seen['numbers']} numbers compared: {len(names) - bad} cases "
        f"identical ({errors} cases end in an error), {bad} different or missing"
    )
    return 1 if bad else 0


def compare_case(a: Path, b: Path, name: str, grid: Grid) -> tuple[list[tuple[str, Allowed | None]], Counter[str]]:
    """What differs between one case's folders and which entry allows it; how many files and numbers were compared."""
    differences, seen = list[tuple[str, Allowed | None]](), Counter[str]()
    ours, theirs = ({str(p.relative_to(at)): p for p in sorted(at.rglob("*")) if p.is_file()} for at in (a, b))
    for path in dict.fromkeys([*ours, *theirs]):
        seen["files"] += 1
        if path in ours and path in theirs:
            first, second = contents(ours[path]), contents(theirs[path])
        else:
            first, second = ({"(file)": path} if path in side else {} for side in (ours, theirs))
        for key in dict.fromkeys([*first, *second]):
            line, gaps = f"only in the {'first' if key in first else 'second'} folder", (np.inf, np.inf)
            if key in first and key in second:
                seen["numbers"] += np.size(first[key])
                if same(first[key], second[key]):
                    continue
                line, gaps = described(first[key], second[key])
            fits = (
                entry
                for entry in grid.allowed
                if entry.holds(name, path, key) and (entry.relative is None or gaps[entry.of_largest] <= entry.relative)
            )
            differences.append((f"{path}: {key}: {line}", next(fits, None)))
    return differences, seen


def same(x: Any, y: Any) -> bool:
    """Bit for bit: dtype, shape and bytes of arrays; kind and value of anything else (a NaN is itself)."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        return bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()
    return type(x) is type(y) and (repr(x) == repr(y) if isinstance(x, float) else bool(x == y))


def described(x: Any, y: Any) -> tuple[str, tuple[float, float]]:
    """How two values differ: in words; and by which share of the larger number, and of the largest of all."""
    first, second, nothing = np.ravel(x), np.ravel(y), (np.inf, np.inf)
    if np.shape(x) != np.shape(y) or (first.dtype != second.dtype and first.dtype.kind != "U"):
        return f"{first.dtype}{list(np.shape(x))} and {second.dtype}{list(np.shape(y))}", nothing
    places = np.flatnonzero((first != second) & ~((first != first) & (second != second)))
    if not len(places):
        return "the same numbers in other bits", nothing
    words = f"{first[places[0]]} and {second[places[0]]}"
    if first.size > 1:
        at = ", ".join(str(k) for k in np.unravel_index(places[0], np.shape(x)))
        words = f"[{at}]: {words}, the first of {len(places)} of {first.size}"
    try:  # cells of a csv file are text
        u, v = (np.array([float("nan" if cell == "" else cell) for cell in values]) for values in (first, second))
    except (TypeError, ValueError):  # names have no differences
        return words, nothing
    gap, size = np.abs(u - v)[places], np.maximum(np.abs(u), np.abs(v))
    if not np.isfinite(gap).all():
        return words, nothing
    each, largest = float((gap / size[places]).max()), float(gap.max() / np.nanmax(size))
    return f"{words}; up to {each:.3g} relative, {largest:.3g} of the largest", (each, largest)


def contents(path: Path) -> dict[str, Any]:
    """What a file holds, {path of a key: value or array}; of other files their lines."""
    if path.suffix in (".json", ".toml"):
        return dict(_flat(json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())))
    if path.suffix == ".csv":
        header, *rows = list(csv.reader(path.read_text().splitlines())) or [[]]
        columns = {name: np.array([row[k] for row in rows], dtype=object) for k, name in enumerate(header)}
        return {"(columns)": ",".join(header), **columns}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    if path.suffix == ".nc":
        import h5netcdf

        with h5netcdf.File(path, "r") as file:
            return dict(_netcdf(file, ""))
    return {f"line {k}": line for k, line in enumerate(path.read_text("latin-1").splitlines(), start=1)}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested dicts and lists with dots in between; what is empty is itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield prefix, value
    for key, inner in items:
        yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))


def _netcdf(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Values, their dimensions, and attributes."""
    for name, value in group.attrs.items():
        yield f"{prefix}@{name}", value if isinstance(value, str) else np.asarray(value)
    for name, variable in group.variables.items():
        yield f"{prefix}/{name}", np.asarray(variable[...])
        yield f"{prefix}/{name}@dims", ",".join(variable.dimensions)
        for key, value in variable.attrs.items():
            yield f"{prefix}/{name}@{key}", value if isinstance(value, str) else np.asarray(value)
    for name, inner in group.groups.items():
        yield from _netcdf(inner, f"{prefix}/{name}")
