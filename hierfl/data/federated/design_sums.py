"""What a site's rows say of a design: the second round of sums before a study begins."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .sums import Moments, NamedSums


@dataclass(frozen=True)
class DesignSums:
    """A second round of sums. They add up.

    Attributes:
        response: moments of the first of its :meth:`~hierfl.responses.base.Response.centre_parts`, one column.
        random: moments of the random columns.
        gram: X'X of the fixed columns, (p, p).
        products: U'U of the fixed columns, centred and scaled by what all sites know, (p, p): it says which of them
            are independent, wherever they lie. (0, 0) in sums of a version before, which refused dependent columns.
        varying: for each random column, the sites whose rows differ in it, (q,).
        sites: how many sites.
        informative: sites with more rows than random effects.
        centre: sums of both, (2,).
        levels: of an ordinal response, rows of each level; else (0,).
        several: sites with more than one group inside, (1,); else (0,).
        homes: sites of each group of sites, (R,).
        histogram: of the response, see :meth:`~hierfl.responses.base.Response.histogram`.
    """

    response: Moments
    random: Moments
    gram: np.ndarray
    products: np.ndarray
    varying: np.ndarray
    sites: int
    informative: int
    centre: np.ndarray
    levels: np.ndarray
    several: np.ndarray
    homes: np.ndarray
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def named(cls, sums: NamedSums, centre: float) -> DesignSums:
        """Undoes :meth:`sums`; ``centre`` is that of the response."""
        response = Moments.named(sums, np.array([centre]), "response.")
        random = Moments.named(sums, np.zeros_like(sums["varying"]), "random.")
        return cls(
            response, random, sums["gram"], sums.get("products", np.zeros((0, 0))), sums["varying"],
            int(sums["sites"]), int(sums["informative"]), sums["centre"], sums.get("levels", np.zeros(0)),
            sums.get("several", np.zeros(0)), sums.get("homes", np.zeros(0)),
            sums.get("histogram", np.zeros(0)),
        )  # fmt: skip

    def sums(self) -> dict[str, np.ndarray]:
        """What is sent of them."""
        return {
            **self.response.sums("response."), **self.random.sums("random."), "gram": self.gram,
            "products": self.products, "varying": self.varying, "sites": np.array(float(self.sites)),
            "informative": np.array(float(self.informative)), "centre": self.centre,
            **{name: own for name in ("levels", "several", "homes", "histogram") if len(own := getattr(self, name))},
        }  # fmt: skip

    def __add__(self, other: DesignSums) -> DesignSums:
        """Adds the sums of the sites of both."""
        return DesignSums(
            self.response + other.response, self.random + other.random, self.gram + other.gram,
            self.products + other.products, self.varying + other.varying, self.sites + other.sites,
            self.informative + other.informative, self.centre + other.centre, self.levels + other.levels,
            self.several + other.several, self.homes + other.homes, self.histogram + other.histogram,
        )  # fmt: skip
