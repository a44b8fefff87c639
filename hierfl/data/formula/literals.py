"""What a formula says of the levels of columns: the categories that it makes, and the texts that it compares with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import UserError
from ..column_names import nearest
from ..spellings import folded
from .tokens import Token, tokens_of

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula

#: calls that make categories of whatever they get
CATEGORIES = ("C", "S", "T")
#: levels that a message shows
LEVELS_SHOWN = 6
_EQUAL = ("==", "!=")


def category_columns(terms: Formula) -> frozenset[str]:
    """Columns of which the formula makes categories, whatever they hold."""
    tokens, columns = list(tokens_of(terms.safe)), set[str]()
    for k, token in enumerate(tokens):
        if token.text not in CATEGORIES or tokens[k + 1].text != "(":
            continue
        depth, end = 1, k + 2
        while depth:
            depth += (tokens[end].text == "(") - (tokens[end].text == ")")
            columns |= {_column(tokens[end])} if tokens[end].kind in ("name", "quoted") else set()
            end += 1
    return frozenset(columns)


def texts(terms: Formula) -> frozenset[str]:
    """All texts of a formula: levels that it names."""
    return frozenset(token.text[1:-1] for token in tokens_of(terms.safe) if token.kind == "text")


def _column(token: Token) -> str:
    return token.text[1:-1] if token.kind == "quoted" else token.text


def _compared(terms: Formula) -> Iterator[tuple[str, Token]]:
    """Columns that a formula compares for equality, and what with."""
    tokens = list(tokens_of(terms.safe))
    for left, sign, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if sign.text in _EQUAL and sign.kind == "sign":
            for operand, other in ((left, right), (right, left)):
                if operand.kind in ("name", "quoted") and other.kind in ("text", "number"):
                    yield _column(operand), other


def in_listed_order(df: pd.DataFrame, terms: Formula) -> pd.DataFrame:
    """A table with the categories whose levels the formula lists, as in ``C(g, levels=['b', 'a'])``, in that order.

    Args:
        df: the table, as :func:`.column_types.typed` has read it.
        terms: of the formula.

    Raises:
        UserError: for a level that is not listed, or a column that is a number elsewhere in the formula.
    """
    import pandas as pd

    columns = {}
    for name, levels in terms.orders.items():
        if df[name].dtype.kind in "biuf" and name not in terms.split:
            raise UserError(
                f"column {name!r} is a category by its levels, and a number elsewhere in the formula: a second column "
                "of it can be one of them"
            )
        if strange := [level for level in df[name].unique().tolist() if level not in levels]:
            raise UserError(f"column {name!r} has the level {strange[0]!r}, which levels={[*levels]} lacks")
        columns[name] = pd.Categorical(df[name].astype(object), [*levels], ordered=True)
    return df.assign(**columns)


def check_levels_named(terms: Formula, df: pd.DataFrame | Mapping[str, pd.Series]) -> None:
    """Refuses comparisons that no row can fulfil: with a text that is no level, or of text with numbers.

    Args:
        terms: of the formula.
        df: the table, as :func:`.column_types.typed` has read it, or columns that have all levels.

    Raises:
        UserError: for one.
    """
    for name, other in _compared(terms):
        column = df[name]
        if column.dtype.kind in "biuf":
            if other.kind == "text":
                number = other.text[1:-1].replace(".", "", 1).isdigit()
                way = f"write {other.text[1:-1]}, without quotes" if number else "no row has it"
                raise UserError(
                    f"column {name!r} holds numbers, and the formula compares it with the text {other.text}: {way}"
                )
            continue
        levels = sorted(set(column.tolist()), key=str)
        value = other.text[1:-1] if other.kind == "text" else other.text
        if other.kind == "number":
            if all(isinstance(level, str) for level in levels):
                raise UserError(
                    f"column {name!r} holds text, and the formula compares it with the number {value}: "
                    f"write {name} == {value!r}"
                )
            continue
        if value not in levels:
            near = nearest(value, [level for level in levels if isinstance(level, str)])
            shown = ", ".join(map(repr, levels[:LEVELS_SHOWN])) + (", ..." if len(levels) > LEVELS_SHOWN else "")
            hint = f"; did you mean {near!r}?" if near else ""
            if near and folded(near) == folded(value):
                hint += " With --spellings join, or spellings='join' in Python, they are one"
            raise UserError(f"column {name!r} has no level {value!r}, which the formula names; it has {shown}{hint}")
