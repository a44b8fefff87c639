"""Which splits each site answers about, as it has said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.data.federation import SPLITS


class Offers:
    """The splits of all sites.

    Attributes:
        by_site: those of each site that has said which; a site may keep its training rows to itself.
        splits: those that anybody has, or may have.
    """

    def __init__(self) -> None:
        self.by_site: dict[int, set[str]] = {}
        self.splits: set[str] = set()

    def note(self, heads: Mapping[int, Mapping[str, Any]]) -> None:
        """Takes over what sites say of themselves, {site: header of its answer}."""
        for site, head in heads.items():
            splits = head.get("splits")
            self.by_site[site] = {split for split in SPLITS if split in splits} if isinstance(splits, list) else set()
            self.splits |= self.by_site[site]

    def has(self, split: str) -> bool:
        """Whether there is a row of metrics for a split. All have training rows; their metrics may be none."""
        return split == "train" or split in self.splits

    def asked(self, split: str, sites: int) -> list[int]:
        """Which of the sites are asked about a split: about training rows those alone that offer them."""
        return [j for j in range(sites) if split != "train" or "train" in self.by_site.get(j, ())]

    def adding(self, split: str) -> list[int]:
        """Which sites have said that they answer about a split."""
        return sorted(j for j, splits in self.by_site.items() if split in splits)

    def silence(self, sites: int) -> str:
        """What is lost where sites give no scores of training rows; empty where all give them."""
        silent = sites - len(self.asked("train", sites))
        if not silent:
            return ""
        lost = "metrics are empty" if silent == sites else "metrics are of the other sites alone"
        return f"{silent} of {sites} sites give no scores of training rows: {lost}; estimates do not depend on them"
