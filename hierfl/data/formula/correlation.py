"""How residuals of one series are correlated, as it is written: ``ar1(visit | patient)``.

    ar1(time | group), ar1(time)      rho^|t - t'| between rows of a group, times whole numbers, -1 < rho < 1
    car1(time | group), car1(time)    the same of any times, 0 < rho < 1
    cs(group)                         rho between any two rows of a group of up to n, -1 / (n - 1) < rho < 1

Without a group a series are the rows of a client.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...errors import UserError
from ..client_names import client_names
from .parsed import Levels

if TYPE_CHECKING:
    import pandas as pd

#: between these a typical gap between rows lies: elsewhere rho^gap is zero or one wherever a fit begins
SHORTEST, LONGEST = 0.05, 20.0
#: names of what rows have for it, among :class:`.design.Columns`
SERIES, TIME = "series", "time"
FORMS = "ar1(time | group), car1(time | group) or cs(group)"
_NAME = r"(?:`([^`]+)`|([\w.]+))"
_WRITTEN = re.compile(rf"\s*(ar1|car1|cs)\s*\(\s*{_NAME}\s*(?:\|\s*{_NAME}\s*)?(?:,\s*most\s*=\s*(\d+)\s*)?\)\s*")


@dataclass(frozen=True)
class Correlation:
    """The correlation of the residuals of one series.

    Attributes:
        kind: of :data:`FORMS`.
        time: column of times; empty for "cs".
        group: column of the series; empty for a client's rows.
        most: rows of a group at most, of "cs"; 0 where it is read off the table.
    """

    kind: Literal["ar1", "car1", "cs"]
    time: str = ""
    group: str = ""
    most: int = 0

    @classmethod
    def parse(cls, text: str) -> Correlation | None:
        """Reads a correlation from its text; None for an empty one.

        Raises:
            UserError: for what is no such correlation.
        """
        if not isinstance(text, str):
            raise UserError(f"correlation is written {FORMS}, not {type(text).__name__}")
        if not text.strip():
            return None
        read = _WRITTEN.fullmatch(text)
        if read is None:
            raise UserError(f"correlation is written {FORMS}, not {text[:60]!r}")
        first, second, most = read[2] or read[3], read[4] or read[5] or "", int(read[6] or 0)
        if (read[1] == "cs") == bool(second) and read[1] == "cs":
            raise UserError(f"cs has a group and no time, as in cs({second}): {text[:60]!r}")
        if read[1] != "cs" and most:
            raise UserError(f"most= is of cs(group), not of {read[1]}")
        if most == 1:
            raise UserError("most= of cs(group) is 2 or more: the rows of a group at most")
        return cls("cs", "", first, most) if read[1] == "cs" else cls(read[1], first, second)  # type: ignore[arg-type]

    @property
    def columns(self) -> set[str]:
        """The columns of the table that it uses."""
        return {self.time, self.group} - {""}

    def check(self, family: str, others: Mapping[str, str]) -> None:
        """Refuses what it does not go with.

        Args:
            family: of the response.
            others: columns that rows have beside, by role.

        Raises:
            UserError: for it.
        """
        if family == "lognormal":
            raise UserError("correlation of a lognormal response is that of its logarithm: log(y) ~ ..., gaussian")
        if family != "gaussian":
            raise UserError(f"correlation is of the residuals of a gaussian response, not a {family} one")
        if others.get("weight"):
            raise UserError("rows that stand for several (weights) have no correlation with others: known_se has")

    def check_levels(self, levels: Levels, own: Collection[str] = ()) -> None:
        """Refuses what is no other model than one with random intercepts, or would join groups inside a client.

        Args:
            levels: of grouping.
            own: numbers of the response that have formulas.

        Raises:
            UserError: for it.
        """
        if own:
            beside = f"a formula of {next(iter(own))}"
            raise UserError(f"residuals have no correlation beside {beside}: one of the two is fitted")
        if self.kind == "cs" and self.group in (levels.client, *(names[-1] for names in levels.inside.values())):
            raise UserError(
                f"cs({self.group}) beside the random effects of {self.group!r} says the same twice: the intercept is "
                "one, or leave its term out"
            )
        if levels.inner and self.group in ("", levels.client):
            raise UserError(
                f"with groups inside a client residuals correlate within {levels.inner!r}: "
                f"{self.kind}({self.time} | {levels.inner})"
            )

    def numbers(
        self, df: pd.DataFrame, who: np.ndarray, inside: Mapping[tuple[str, ...], np.ndarray], *,
        rho_known: bool = False,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """The series of each row, a number from 1, and its time, (n,).

        Args:
            df: the table.
            who: client of each row, (n,).
            inside: its group of each level inside the client, by the columns that say it, (n,) each.
            rho_known: whether rho was estimated from other rows. Then series of one row are enough, at any distances.

        Raises:
            UserError: for times that are no such numbers or are twice in a series, or for series of one row.
        """
        names = who if not self.group else client_names(df[self.group], f"column {self.group!r}")
        for (
            columns,
            group,
        ) in inside.items():  # patients of a ward, of whom another ward may have some of the same name
            names = group if len(columns) > 1 and columns[-1] == self.group else names
        pairs = [f"{client}\0{name}" for client, name in zip(who.tolist(), names.tolist(), strict=True)]
        _, series = np.unique(np.array(pairs), return_inverse=True)
        of_series = self.group or "client"
        if any(
            len({*zip(series.tolist(), groups.tolist(), strict=True)}) > series.max() + 1 for groups in inside.values()
        ):
            raise UserError(
                f"rows of one {of_series!r} are in several groups inside the client: residuals correlate in one"
            )
        sizes = np.bincount(series)
        if sizes.max() < 2 and not rho_known:
            raise UserError(f"no {of_series!r} has two rows: nothing says how residuals correlate")
        numbers = {SERIES: series + 1.0}
        if self.kind == "cs":
            if self.most and sizes.max() > self.most:
                limit = f"{self.most} is the most in the fit" if rho_known else f"most={self.most}"
                raise UserError(f"a {of_series!r} has {sizes.max()} rows, and {limit}")
            return numbers
        time = df[self.time]
        if time.dtype.kind not in "iuf":
            raise UserError(f"column {self.time!r} holds no numbers, so it cannot hold times: count them, as in days")
        times = time.to_numpy(dtype=float)
        if not np.isfinite(times).all():
            raise UserError(f"column {self.time!r} holds times that are missing or infinite")
        if self.kind == "ar1" and (times != np.floor(times)).any():
            raise UserError(f"ar1 is of whole-number times, and {self.time!r} has others: car1 is of any")
        order = np.lexsort((times, series))
        same = np.diff(series[order]) == 0
        gaps = np.diff(times[order])[same]
        if (gaps == 0).any():
            raise UserError(
                f"{int((gaps == 0).sum())} rows have the same {self.time!r} as another row of their {of_series!r}"
            )
        if rho_known:
            return {**numbers, TIME: times}
        typical = float(np.median(gaps))
        if not SHORTEST <= typical <= LONGEST:
            raise UserError(
                f"rows of a {of_series!r} lie {typical:g} apart in {self.time!r}, and rho is of a distance of one: "
                f"divide {self.time!r} by about {typical:.1g}"
            )
        return {**numbers, TIME: times}

    def sized(self, series: np.ndarray) -> Correlation:
        """The correlation with the number of rows of the longest series, where none was given."""
        most = self.most or int(np.bincount(series.astype(int)).max())
        return replace(self, most=most) if self.kind == "cs" else self
