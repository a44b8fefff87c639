"""Mutants drawn at random: as many of each floor, and of each kind within a floor, as their number allows."""

from __future__ import annotations

import ast
import hashlib
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .mutant_sites import KINDS, Change, Site, sites

#: folders at the root of a checkout
FLOORS = ("hierfl", "inference", "models", "experiments")


def sources(root: Path, floor: str) -> dict[str, bytes]:
    """A floor's files by path from the root, in order; committed results left out."""
    paths = {path.relative_to(root): path for path in (root / floor).rglob("*.py")}
    kept = {inside.as_posix(): path for inside, path in paths.items() if inside.parts[1] != "results"}
    return {name: kept[name].read_bytes() for name in sorted(kept)}


def digest(text: bytes) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(text).hexdigest()


def draw(root: Path, seed: int = 46, number: int = 30) -> dict[str, Any]:
    """Mutants of a checkout: a site uniformly within its floor and kind, then one of its changes uniformly.

    Args:
        root: of the checkout.
        seed: of all choices.
        number: of mutants.

    Returns:
        the seed, the number, how many sites there are by floor and kind, and the mutants: see :func:`mutant`.

    Raises:
        ValueError: if a floor has too few sites.
    """
    rng = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    counts: dict[str, dict[str, int]] = {}
    each, more = divmod(number, len(FLOORS))
    for k, floor in enumerate(FLOORS):
        texts = sources(root, floor)
        strata: dict[str, list[tuple[str, Site]]] = {kind: [] for kind in KINDS}
        for file, text in texts.items():
            for site in sites(text):
                strata[site.kind].append((file, site))
        counts[floor] = {kind: len(stratum) for kind, stratum in strata.items()}
        quota = share(each + (k < more), {kind: counts[floor][kind] for kind in rng.sample(KINDS, len(KINDS))})
        for kind in KINDS:
            left = quota[kind]
            for file, site in rng.sample(strata[kind], len(strata[kind])):
                if not left:
                    break
                change = rng.choice(site.changes)
                if compiles(texts[file], change):
                    drawn.append(mutant(len(drawn) + 1, floor, file, kind, texts[file], change))
                    left -= 1
            if left:
                raise ValueError(f"{floor} has too few sites of kind {kind} that compile")
    return {"seed": seed, "number": number, "sites": counts, "mutants": drawn}


def share(number: int, available: Mapping[str, int]) -> dict[str, int]:
    """A number dealt out one by one, in turns, to those who have something left.

    Raises:
        ValueError: if all together have less.
    """
    if sum(available.values()) < number:
        raise ValueError(f"{sum(available.values())} sites, and {number} mutants were asked for")
    dealt = dict.fromkeys(available, 0)
    while True:
        for kind in available:
            if sum(dealt.values()) == number:
                return dealt
            dealt[kind] += dealt[kind] < available[kind]


def compiles(text: bytes, change: Change) -> bool:
    """Whether the changed file compiles, to another syntax tree."""
    changed = text[: change.start] + change.new + text[change.end :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "int object is not callable", and the like, is what a mutant may do
        try:
            compile(changed, "<mutant>", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def mutant(number: int, floor: str, file: str, kind: str, text: bytes, change: Change) -> dict[str, Any]:
    """A mutant as the list holds it; ``span`` is line, column, end line and end column as ``ast`` counts them."""
    (line, column), (end_line, end_column) = (line_and_column(text, at) for at in (change.start, change.end))
    return {
        "number": number,
        "floor": floor,
        "file": file,
        "line": line,
        "kind": kind,
        "original": text[change.start : change.end].decode(),
        "replaced": change.new.decode(),
        "span": [line, column, end_line, end_column],
        "digest": digest(text),
    }


def line_and_column(text: bytes, at: int) -> tuple[int, int]:
    """Line and column of a byte."""
    return text.count(b"\n", 0, at) + 1, at - (text.rfind(b"\n", 0, at) + 1)


def splice(text: bytes, entry: Mapping[str, Any]) -> bytes:
    """A file's bytes with a mutant in them.

    Args:
        text: the file's bytes.
        entry: of the list.

    Raises:
        ValueError: if the file is not the one that the mutant was drawn from.
    """
    if digest(text) != entry["digest"]:
        raise ValueError(f"{entry['file']} has changed since mutant {entry['number']} was drawn")
    lines = text.split(b"\n")
    rows, columns = entry["span"][::2], entry["span"][1::2]
    start, end = (sum(len(x) + 1 for x in lines[: row - 1]) + at for row, at in zip(rows, columns, strict=True))
    if text[start:end] != entry["original"].encode():
        raise ValueError(f"mutant {entry['number']} is not where its list says")
    return text[:start] + entry["replaced"].encode() + text[end:]
