"""What a site's rows must satisfy, and how far each rule is from its limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A rule of a site's policy, tried on a study.

    Attributes:
        name: of the rule.
        holds: whether the study keeps it.
        margin: how far the study is from the limit, in words for the site alone: it names columns and counts, and is
            never sent.
    """

    name: str
    holds: bool
    margin: str


@dataclass(frozen=True)
class Limits:
    """What the rules on rows compare with.

    Attributes:
        least_rows: rows that a site must have, and each part of them that is held out.
        least_cell: rows in every cell that is not empty; rows that a comparison selects, and that it leaves.
        least_groups: groups inside a site, where the formula has them; then cells are counted in groups.
        parameters_per_row: columns of a formula's design for each row.
        largest_share: of one row in what the design's columns determine, from 0 to 1.
        pairs: whether the cells of every two categories count, not only those of interactions in the formula.
    """

    least_rows: int = 10
    least_cell: int = 5
    least_groups: int = 5
    parameters_per_row: float = 0.33
    largest_share: float = 0.9
    pairs: bool = False


def worst(name: str, tried: Iterable[tuple[float, Rule]]) -> Rule:
    """One rule for many: the one that is nearest to its limit, or furthest beyond, under another name.

    Args:
        name: of the rule.
        tried: at least one rule, each with a number that is smaller the nearer it is to its limit.
    """
    _, nearest = min(tried, key=lambda judged: (judged[1].holds, judged[0]))
    return Rule(name, nearest.holds, f"{nearest.name}: {nearest.margin}")
