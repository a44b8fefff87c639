"""The trials of p(successes, trials), of rows whose successes are not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..column_names import one_column
from . import gate
from .column_types import readable
from .missing import lacks_values
from .tokens import Token, tokens_of

if TYPE_CHECKING:
    import pandas as pd

#: calls of which the response is successes among trials
CALLS = ("p", "prop", "proportion")


def trials_text(formula: str) -> str:
    """What a formula says of the trials: a whole number, or an expression of columns; empty where it says nothing."""
    tokens = list(tokens_of(gate.parse(formula).safe))
    if tokens[0].text not in CALLS or tokens[1] != Token("sign", "("):
        return ""
    depth, arguments = 1, [list[Token]()]
    for token in tokens[2:]:
        depth += (token.text == "(") - (token.text == ")") if token.kind == "sign" else 0
        if not depth:
            break
        if depth == 1 and token == Token("sign", ","):
            arguments.append([])
        else:
            arguments[-1].append(token)
    named = {
        argument[0].text: argument[2:]
        for argument in arguments
        if len(argument) > 1 and argument[1] == Token("sign", "=")
    }
    return " ".join(token.text for token in named.get("trials", arguments[-1]))


def trials_columns(formula: str) -> frozenset[str]:
    """The columns of the trials; none where they are a number."""
    text = trials_text(formula)
    return frozenset() if not text or text.isdigit() else gate.parse(f"0 + I({text})").predictors


def trials_of(formula: str, df: pd.DataFrame) -> np.ndarray | None:
    """The trials of each row of a table that needs no successes, (n,); None where it has no column of trials.

    Raises:
        UserError: for a table that has some columns of the trials and lacks others, or trials that are no whole
            numbers from 1.
    """
    text, columns = trials_text(formula), trials_columns(formula)
    if not columns:
        return np.full(len(df), float(text)) if text else None
    present = columns & set(df.columns)
    if not present:
        return None
    numbers = dict[str, Any]()
    for name in sorted(columns):
        if name not in present:
            raise UserError(f"the table lacks column {name!r}, which the trials {text!r} need")
        column = one_column(df, name)
        if missing := int(column.isna().sum()):
            raise lacks_values(name, missing)
        numbers[name] = readable(column)
        if numbers[name].dtype.kind not in "biuf":
            raise UserError(
                f"column {name!r} holds no numbers, so it cannot hold trials: "
                f"df[{name!r}] = df[{name!r}].astype(float), of text that is written as numbers"
            )
    whole = {name: column.astype(float) for name, column in numbers.items()}
    trials = (
        gate.evaluate(gate.parse(f"0 + I({text})"), df[[]].assign(**whole)).common.design_matrix[:, 0].astype(float)
    )
    if not ((trials >= 1) & (trials == np.floor(trials))).all():
        raise UserError(f"the trials {text!r} are whole numbers from 1, and not in every row here")
    return trials
