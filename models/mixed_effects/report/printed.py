"""A summary of a fitted mixed model, as it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hierfl.data.formula.parsed import INSIDE_GROUPS
from hierfl.data.formula.references import reference_line
from hierfl.errors import UserError, short_repr
from hierfl.responses.registry import RESPONSES

from .summary import p_value

if TYPE_CHECKING:
    import pandas as pd

#: Student's t with as many degrees of freedom, or more, is printed as a normal
NORMAL_DF = 1e4
#: what exp of a coefficient may be called
RATIOS = frozenset(kind.ratio for kind in RESPONSES.values() if kind.ratio)


@dataclass(frozen=True)
class Summary:
    """What :meth:`~hierfl.models.mixed_effects.fitted_model.FittedMixedModel.summary` gives; it prints as a table.

    Attributes:
        formula, family, population: of the model.
        level: of the intervals.
        table: a row for each effect; columns as :func:`.summary.effects_table`, and odds or rate ratios.
        numbers: log_likelihood, aic, bic, rows, groups and the like.
        notes: what to know of the fit as a whole; a note of one effect is in the table.
        references: of each category, the level that its others are compared with.
    """

    formula: str
    family: str
    population: str
    level: float
    table: pd.DataFrame
    numbers: dict[str, float]
    notes: tuple[str, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The summary as text."""
        what = {
            "auto": "maximum likelihood, errors restricted", "ml": "maximum likelihood", "reml": "REML",
            "bayes": "posterior",
        }[self.population]  # fmt: skip
        n = self.numbers
        lines = [f"{self.formula}   {self.family}, {what}", ""]
        lines += [_text(self.table, self.level), ""]
        lines += [line] if (line := reference_line(self.references)) else []
        lines += [ratio_line(ratio) for ratio in RATIOS if ratio in self.table]
        if "log_likelihood" in n:
            name = "restricted log likelihood" if self.population == "reml" else "log likelihood"
            lines.append(f"{name} {n['log_likelihood']:.3f}, AIC {n['aic']:.1f}, BIC {n['bic']:.1f}")
        lost = f"; {n['left_out']:,.0f} more lack a value, and are left out" if n.get("left_out") else ""
        numbers = [f"{number:,.0f}" for name, number in n.items() if name in INSIDE_GROUPS]
        inside = f"{' + '.join(numbers)} groups inside " if numbers else ""
        above = f" in {n['outer_groups']:,.0f} groups" if "outer_groups" in n else ""
        above = f" x {n['crossed_groups']:,.0f} groups that cross them" if "crossed_groups" in n else above
        lines.append(f"{n['rows']:,.0f} rows of {inside}{n['groups']:,.0f} clients{above}{lost}")
        lines += [f"{row.effect}: {row.note}" for row in self.table.itertuples() if row.note]
        lines += self.notes
        return "\n".join(lines)


def _text(table: pd.DataFrame, level: float) -> str:
    """The columns that have numbers, a few digits each."""
    tail = 50 * (1 - level)
    statistic = statistic_name(table["df"][table["statistic"].notna()])
    names = {
        "estimate": "estimate", "standard_error": "SE", "lower": f"{tail:g} %", "upper": f"{100 - tail:g} %",
        "statistic": statistic, "df": "df", "p": "p",
    }  # fmt: skip
    shown = table[["effect", *names]].copy()
    shown["df"] = shown["df"].where(shown["df"] < NORMAL_DF)
    shown = shown.rename(columns=names).dropna(axis=1, how="all").set_index("effect").rename_axis(None)
    digits = {"df": "{:.1f}", statistic: "{:.2f}"}
    formats = {c: digits.get(c, "{:.4g}").format for c in shown} | {"p": p_value}
    return shown.to_string(na_rep="", formatters=formats)


def statistic_name(df: Iterable[float]) -> str:
    """What an estimate divided by its standard error is called: t, or z where it is compared with a normal.

    Args:
        df: degrees of freedom of the tests of a table.
    """
    normal = {not value < NORMAL_DF for value in df}
    return "t" if normal <= {False} else "z" if normal == {True} else "t or z"


def ratio_line(ratio: str) -> str:
    """Says on what scale coefficients are.

    Args:
        ratio: that exp of a coefficient is, as a response calls it.
    """
    return f"coefficients are logarithms: exp of one is its {ratio}"


def check_level(level: float) -> None:
    """Refuses what is no share between 0 and 1.

    Raises:
        UserError: for it.
    """
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise UserError(f"an interval's level lies between 0 and 1, not {short_repr(level)}")
