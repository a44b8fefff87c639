"""Mixed-effects models of many rows and many places: what grows with what."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from formulae import design_matrices

from hierfl.formulas import from_formula


def places(rows: int, clients: int, seed: int = 0) -> pd.DataFrame:
    """Rows of places that all have at least one: two numbers, two categories, a count."""
    rng = np.random.default_rng(seed)
    who = np.sort(np.r_[np.arange(clients), rng.integers(0, clients, rows - clients)])
    x, u = rng.normal(2, 1.5, rows), rng.normal(size=rows)
    y = 3 + 0.7 * x + rng.normal(size=clients)[who] + 0.8 * rng.normal(size=rows)
    words = {"f": np.array(list("abc"))[rng.integers(0, 3, rows)], "g": np.array(list("uv"))[rng.integers(0, 2, rows)]}
    return pd.DataFrame({"y": y, "x": x, "u": u, **words, "k": rng.poisson(2, rows), "site": [f"s{j}" for j in who]})


def dense_columns(df: pd.DataFrame, formula: str) -> dict[str, np.ndarray]:
    """The random effects' columns by way of formulae's own matrix, rows x (clients x effects), blocks added up."""
    group, columns = design_matrices(formula, df).group, {}
    for key, term in group.terms.items():
        for label, column in zip(term.labels, group[key].toarray().T, strict=True):
            name = label.rpartition("|")[0]
            name = "Intercept" if name == "1" else name
            columns[name] = columns.get(name, 0.0) + column.astype(float)
    return columns


FORMULAS = [
    "(1 | site)",
    "(x | site)",
    "(1 + x + u | site)",
    "(0 + x | site)",
    "(0 + f | site)",
    "(1 + f | site)",
    "(f | site)",
    "(0 + f:g | site)",
    "(1 + f:g | site)",
    "(f * g | site)",
    "(0 + x:f | site)",
    "(x * f | site)",
    "(1 + x:u + k | site)",
    "(1 + scale(x) | site)",
    "(0 + center(u) + x | site)",
    "(1 + I(x**2) | site)",
    "(1 + bs(u, df=4) | site)",
    "(1 + C(k > 1) | site)",
    "(1 | site) + (0 + x | site)",
    "(1 + x | `site`)",
]


@pytest.mark.parametrize("random", FORMULAS)
def test_columns_are_those_of_the_dense_matrix(random: str) -> None:
    """Bit for bit, names and order included; and of other rows, by the transforms of the first ones."""
    df, formula = places(80, 7), f"y ~ 1 + x + {random}"
    wanted = dense_columns(df, formula)
    federation, design = from_formula(df, formula)
    assert design.random == tuple(wanted)
    rows = np.concatenate([index.numpy() for index in federation.train])
    held = federation.x.numpy()[:, len(design.fixed) : len(design.fixed) + len(design.random)]
    place = np.concatenate([np.flatnonzero(df.site == name) for name in federation.ids])
    assert np.array_equal(held[rows], np.column_stack(list(wanted.values()))[place])
    new = df.iloc[::3].reset_index(drop=True)
    found = federation.about["reader"](new.drop(columns=["y", "site"]))
    group = design_matrices(formula, df).group.evaluate_new_data(new)
    again = dict.fromkeys(wanted, 0.0)
    for key, term in group.terms.items():
        for label, column in zip(term.labels, group[key].toarray().T, strict=True):
            name = label.rpartition("|")[0]
            again["Intercept" if name == "1" else name] += column
    assert np.array_equal(found[:, len(design.fixed) :], np.column_stack(list(again.values())))


def test_a_column_that_names_the_clients_may_be_an_effect_too() -> None:
    df = places(60, 4).assign(site=lambda d: d.site.str[1:].astype(int))
    federation, design = from_formula(df, "y ~ 1 + site + (0 + site | site)")
    assert design.fixed == ("Intercept", "site")
    row = federation.x[federation.train[2][0]].numpy()
    assert row.tolist() == [1, 2, 2]
    assert federation.about["reader"](pd.DataFrame({"site": [3]})).tolist() == [[1, 3, 3]]
