"""A calibration of a model, kept in a folder: what was asked, the ranks of the replicates, and what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole
from hierfl.inference.run.progress import Bar

from .blocks import Blocks, Ranked, as_record, ranks_of
from .ranks import LEVELS, SURE, Ranks, adjusted

#: fewer ranks than this show only what is far off
FEWEST = 50
#: the file of ranks, and that of what they say
RANKS, RESULT = "replicates.json", "sbc.json"


@dataclass(frozen=True)
class Calibration:
    """What is known of the intervals of a model.

    Attributes:
        name: of the model.
        words: where its covariates come from.
        draws: among which truths are ranked.
        replicates: of the calibration.
        globals, clients: names of what is ranked, of everyone and of one client of each replicate.
    """

    name: str
    words: str
    draws: int
    replicates: list[Ranked]
    globals: list[str]
    clients: list[str]

    @property
    def ranked(self) -> list[Ranks]:
        """Ranks of each quantity."""
        return [
            Ranks(name, ranks_of(self.replicates, name), self.draws) for name in (*self.globals, *self.clients)
        ]  # fmt: skip

    @property
    def failed(self) -> list[Ranked]:
        """Replicates without a posterior."""
        return [replicate for replicate in self.replicates if not replicate.ranks]

    @property
    def warned(self) -> list[Ranked]:
        """Replicates with a posterior whose verdict warns."""
        return [replicate for replicate in self.replicates if replicate.ranks and replicate.warnings]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of each quantity: name, coverage and its Monte-Carlo error, p-values of the ranks' uniformity."""
        ranked = self.ranked
        p_values = [ranks.p_value for ranks in ranked]
        rows = []
        for ranks, p, together in zip(ranked, p_values, adjusted(p_values), strict=True):
            row: dict[str, Any] = {"quantity": ranks.name}
            for level in LEVELS:
                share, error = ranks.coverage(level)
                row |= {f"coverage_{level * 100:.0f}": share, f"coverage_{level * 100:.0f}_se": error}
            row |= {"p_value": p, "p_value_together": together, "off": together < 1 - SURE}
            rows.append(row | {"how": ranks.worst if row["off"] else ""})
        return rows

    def lines(self) -> list[str]:
        """What there is to say beside the table, a line each; the last one is whether intervals cover."""
        count, failed, warned = len(self.replicates), self.failed, self.warned
        lines = [
            f"{count} replicates: {len(failed)} without a posterior, {len(warned)} with a verdict that warns",
        ]
        if failed:
            reasons = [replicate.failed for replicate in failed]
            most = max(set(reasons), key=reasons.count)
            lines.append(
                f"ranks are of the {count - len(failed)} others alone, so that coverage is of those: "
                f"most often, {reasons.count(most)} times, {most}"
            )
        if count == len(failed):
            return [*lines, "intervals: nothing is known, as no replicate has a posterior"]
        off = [row for row in self.rows() if row["off"]]
        level = f"coverage_{LEVELS[-1] * 100:.0f}"
        shares = [row[level] for row in self.rows()]
        spread = f"{LEVELS[-1]:.0%} intervals hold the truth in {min(shares):.1%} to {max(shares):.1%} of replicates"
        if not off and count - len(failed) < FEWEST:
            return [*lines, f"too few replicates to say whether intervals cover: {spread}"]
        if not off:
            return [*lines, f"intervals cover: {spread}, and no ranks differ from uniform ones beyond chance"]
        named = "; ".join(f"{row['quantity']}, {row['how']} ({row[level]:.1%})" for row in off)
        return [*lines, f"intervals do not cover: {spread}; ranks are off of {named}"]

    def record(self) -> dict[str, Any]:
        """The study as a record of a file."""
        return {
            "model": self.name, "covariates": self.words, "replicates": len(self.replicates), "draws": self.draws,
            "failed": len(self.failed), "warned": len(self.warned), "quantities": [_finite(row) for row in self.rows()],
            "says": self.lines()[-1],
        }  # fmt: skip


def calibrate(
    name: str, blocks: Blocks, words: str, replicates: int, folder: Path | None, question: dict[str, Any],
    progress: bool = True,
) -> Calibration:  # fmt: skip
    """Runs the replicates of a calibration that are not in its folder yet.

    Args:
        name: of the model.
        blocks: of replicates.
        words: where covariates come from.
        replicates: how many.
        folder: where ranks are kept after each block; None for nowhere.
        question: all that ranks depend on, by which a folder is known again.
        progress: a bar on standard error.

    Raises:
        UserError: for a folder with another calibration.
    """
    question = {**question, "rows_digest": blocks.federation.digest(), "block": blocks.size}
    done = _read(folder, question)
    if folder is not None:
        make_folder(folder)
    with Bar(replicates, min(replicates, len(done)), show=progress) as bar:
        for number in range(-(-replicates // blocks.size)):
            first, last = number * blocks.size, min(replicates, (number + 1) * blocks.size)
            if len(done) >= last:
                continue
            made = blocks.block(number, last - first)
            done = [*done[:first], *made]
            if folder is not None:
                records = {"question": question, "replicates": [as_record(replicate) for replicate in done]}
                write_whole(folder / RANKS, (json.dumps(records) + "\n").encode())
            for _ in made:
                bar.advance()
    calibration = Calibration(name, words, blocks.draws, done[:replicates], *blocks.quantities)
    if folder is not None:
        text = json.dumps({**question, **calibration.record()}, indent=1, allow_nan=False)
        write_whole(folder / RESULT, (text + "\n").encode())
    return calibration


def _read(folder: Path | None, question: dict[str, Any]) -> list[Ranked]:
    if folder is None or not (folder / RANKS).is_file():
        return []
    try:
        record = json.loads((folder / RANKS).read_text())
        asked, records = record["question"], [Ranked(**replicate) for replicate in record["replicates"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / RANKS} is no file of ranks: {error}") from error
    if differs := [name for name in {**asked, **question} if asked.get(name) != question.get(name)]:
        raise UserError(
            f"{folder} is another calibration: {', '.join(sorted(differs))} differs; say another --out, or --overwrite"
        )
    return records


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def shown(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's rows in print: quantity, coverage of each level with its error, p-value, a word."""
    lines = []
    for row in rows:
        cells = [row["quantity"]]
        for level in LEVELS:
            share, error = row[f"coverage_{level * 100:.0f}"], row[f"coverage_{level * 100:.0f}_se"]
            cells.append(f"{share:.1%} ± {error:.1%}")
        lines.append([*cells, f"{row['p_value']:.3f}", row["how"]])
    return lines
