"""Two folders of golden runs, compared file by file, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from golden_files import ROOT, contents
from golden_names import EXEMPT, FILES, KEYS, ROUNDING
from golden_settings import renamed_settings

#: lines that a case prints at most
LINES = 8
#: leftovers that say nothing
IGNORED = ("*.lock", "*.part")


@dataclass
class Found:
    """What was compared in a case.

    Attributes:
        files, numbers, pixels: how many; a number is one entry of an array or a column, or a value.
        different: lines on what differs.
        rounding: lines on what differs within what ROUNDING allows.
    """

    files: int = 0
    numbers: int = 0
    pixels: int = 0
    different: list[str] = field(default_factory=list)
    rounding: list[str] = field(default_factory=list)


def compare(a: Path, b: Path, names: Sequence[str]) -> int:
    """Prints what differs between folders A (old names) and B; 1 if anything does."""
    total, bad, rounded, seen = Found(), 0, 0, 0
    for name in names:
        if not (a / name).is_dir() and not (b / name).is_dir():
            print(f"{name}: MISSING in both")
            bad += 1
            continue
        found = _case(a, b, name)
        seen, total.files, total.numbers = seen + 1, total.files + found.files, total.numbers + found.numbers
        total.pixels += found.pixels
        rounded += len(found.rounding)
        bad += bool(found.different)
        lines = found.different + found.rounding
        print(f"{name}: {f'DIFFERENT, {len(found.different)}' if found.different else 'identical'}"
              f" ({found.files} files, {found.numbers} numbers)")  # fmt: skip
        for line in lines[:LINES]:
            print(f"    {line}")
        if len(lines) > LINES:
            print(f"    ... and {len(lines) - LINES} more")
    print(
        f"{seen} cases, {total.files} files, {total.numbers} numbers, {total.pixels} bytes of pixels compared: "
        f"{len(names) - bad} cases identical, "
        f"{bad} different or missing; {rounded} values within ROUNDING"
    )
    for row in EXEMPT:
        print(f"exempt: {row[0]} {row[1]} {row[2]}: {row[3]}")
    for case, files, keys, most, why in ROUNDING:
        print(f"rounding allowed: {case} {files} {keys} up to {most:g}: {why}")
    return 1 if bad else 0


def _files(folder: Path) -> dict[str, Path]:
    paths = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {k: p for k, p in paths.items() if not any(fnmatchcase(k, pattern) for pattern in IGNORED)}


def _case(a: Path, b: Path, name: str) -> Found:
    found, theirs, roots = Found(), _files(b / name), [(folder / ROOT).read_text() for folder in (a, b)]
    for path, old in _files(a / name).items():
        new = path
        if path not in theirs:
            new = next((re.sub(p, r, path) for p, r in FILES if re.fullmatch(p, path)), path)
        if new not in theirs:
            found.different.append(f"{path}: missing")
            continue
        found.files += 1
        _file(found, name, path, old, theirs.pop(new), roots)
    found.different += [f"{path}: only in the second folder" for path in theirs]
    return found


def _file(found: Found, case: str, path: str, old: Path, new: Path, roots: Sequence[str]) -> None:
    one = contents(old, roots[0])
    two = dict(one) if old.read_bytes() == new.read_bytes() else contents(new, roots[1])
    one = dict(_renamed(path, old, one, two))
    for key in one.keys() | two.keys():
        if any(fnmatchcase(case, c) and fnmatchcase(path, f) and fnmatchcase(key, k) for c, f, k, _ in EXEMPT):
            one.pop(key, None), two.pop(key, None)
    for key in [*one, *(k for k in two if k not in one)]:
        if key not in two or key not in one:
            found.different.append(f"{path}: {key}: only in the {'first' if key in one else 'second'} folder")
            continue
        x, y = one[key], two[key]
        size = x.size if isinstance(x, np.ndarray) else 1
        if key == "pixels":
            found.pixels += size
        else:
            found.numbers += size
        if not same(x, y):
            _differs(found, case, path, key, x, y)


def _differs(found: Found, case: str, path: str, key: str, x: Any, y: Any) -> None:
    most = largest(x, y)
    size = "" if most is None else f", largest difference {most:.3g}"
    for c, f, k, allowed, _ in ROUNDING:
        if (
            fnmatchcase(case, c)
            and fnmatchcase(path, f)
            and fnmatchcase(key, k)
            and most is not None
            and most <= allowed
        ):
            found.rounding.append(f"{path}: {key}{size}, {allowed:g} allowed")
            return
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == object and x.shape == y.shape:
        places = np.flatnonzero(x != y)
        key, x, y = f"{key}[{places[0]}], and {len(places) - 1} more", x[places[0]], y[places[0]]
    found.different.append(f"{path}: {key}: {_shown(x)} and {_shown(y)}{size}")


def _renamed(path: str, file: Path, one: dict[str, Any], two: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The old folder's values under the new folder's names."""
    one = renamed_settings(file, one, two)
    for key, value in one.items():
        if key not in two:
            for files, pattern, replacement, convert in KEYS:
                if fnmatchcase(path, files) and re.fullmatch(pattern, key):
                    new = re.sub(pattern, replacement, key)
                    yield new, value if convert is None else convert(value)
                    break
            else:
                yield key, value
        else:
            yield key, value


def same(x: Any, y: Any) -> bool:
    """Bit for bit: dtype, shape and bytes of arrays; kind and value of anything else (a NaN is itself)."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        return bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()
    if isinstance(x, float) and isinstance(y, float):
        return np.float64(x).tobytes() == np.float64(y).tobytes()
    return type(x) is type(y) and bool(x == y)


def largest(x: Any, y: Any) -> float | None:
    """The largest absolute difference; None where there is none to be had."""
    try:
        one, two = (np.atleast_1d(np.asarray(v)).astype(np.float64) for v in (x, y))
    except (TypeError, ValueError):
        return None
    if one.shape != two.shape or not one.size:
        return None
    with np.errstate(invalid="ignore"):
        gaps = np.abs(one - two)
    gaps[(one == two) | (np.isnan(one) & np.isnan(two))] = 0
    return float(np.inf if np.isnan(gaps).any() else gaps.max())


def _shown(x: Any) -> str:
    text = f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else repr(x)
    return text if len(text) < 60 else f"{text[:57]}..."
