"""Every public call of a fit with an argument that it cannot use is one line, and no answer."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl.argument_types import typed_call
from hierfl.errors import UserError
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.models.mixed_effects.mixed_model import mixed_model

RNG = np.random.default_rng(0)
DF = pd.DataFrame({"site": np.repeat(list("abcd"), 8), "x": RNG.normal(size=32), "arm": ["p", "q"] * 16})
DF["y"] = DF.x + RNG.normal(size=32) + np.repeat(RNG.normal(size=4), 8)

#: what a call needs beside its wrong argument
NEEDED: dict[str, dict[str, Any]] = {
    "test": {"hypothesis": "x = 0"}, "means": {"of": "arm"}, "contrast": {"of": "arm"}, "predict": {"df": DF},
}  # fmt: skip
#: of no argument of any call
NEVER = [object(), -1, float("nan"), b"x", [1], {1: 2}, np.ones(2), DF.x, pd.DataFrame(), "~ nothing", {"x": []}]
#: of arguments, others that they cannot be
ALSO: dict[str, list[Any]] = {
    "df": [2, "arm", {}, DF[["x"]], DF.assign(x=np.nan)], "level": [0, 2, "nothing", True],
    "n": [0, 2.5, True, "x", None],
    "of": [None, 2, "site", ["arm", 1], ["arm", "arm"]], "by": [None, 2, "site"], "scale": [None, "log"],
    "at": [2, "x", {"x": "a"}, {"arm": "z"}, {"z": 1}, {"x": np.inf}], "adjust": [None, "holm"], "kind": ["all", None],
    "hypothesis": ["", "z = 0", "0 = 0", "x = 1e999", "x ="], "type": [2, "two"], "other": [None, 2, DF],
    "given": [2, "x", {}, DF],
    "update": [None, 2, "y ~", "~ . + z", "~ . - (1 | site)"], "folder": [None, 2, "", True], "interval": ["x", 0, 2],
    "replicates": [], "test": ["lrt", None], "seed": ["x", None, 2.5],
}  # fmt: skip
CALLS = [name for name, call in inspect.getmembers(FittedMixedModel, inspect.isfunction) if not name.startswith("_")]


@pytest.fixture(scope="module")
def fit() -> FittedMixedModel:
    return mixed_model(DF, "y ~ x + arm + (1 | site)", draws=0)


@pytest.mark.parametrize("name", CALLS)
def test_is_one_line(name: str, fit: FittedMixedModel) -> None:
    call = getattr(fit, name)
    parameters = inspect.signature(call).parameters
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), {"nothing": 1}), ((1,) * 9, {})]
    for argument in set(parameters) - {"how", "changes", "replicates"}:
        wrong += [((), {**NEEDED.get(name, {}), argument: value}) for value in NEVER + ALSO[argument]]
    for positional, named in wrong:
        with pytest.raises(UserError, match=r"^.*\Z"):
            print(positional, named, call(*positional, **named))


def test_types() -> None:
    @typed_call
    def call(
        df: pd.DataFrame | None = None, names: str | list[str] = "", *, many: int | None = None, path: str | Path = "p"
    ) -> str:
        return "answered"

    assert call(DF, "x", many=np.int64(3), path=Path("p")) == call() == call(None, names=["x"]) == "answered"
    with pytest.raises(UserError, match=r"^df is a table \(pandas.DataFrame\) or None, not 2; it is called as call"):
        call(2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="^many is a whole number or None, not True"):
        call(many=True)
    with pytest.raises(UserError, match="^path is text or a path, not a DataFrame"):
        call(path=DF)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unexpected keyword argument 'd'"):
        call(d=2)  # type: ignore[call-arg]
