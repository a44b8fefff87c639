"""Design columns of large tables."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from formulae import design_matrices
from support.mixed_places import places

from hierfl.data.formula.federate import from_formula


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
    columns = federation.x.numpy()[:, len(design.fixed) : len(design.fixed) + len(design.random)]
    order = np.concatenate([np.flatnonzero(df.site == name) for name in federation.ids])
    assert np.array_equal(columns[rows], np.column_stack(list(wanted.values()))[order])
    new = df.iloc[::3].reset_index(drop=True)
    matrix = federation.about["reader"](new.drop(columns=["y", "site"]))
    group = design_matrices(formula, df).group.evaluate_new_data(new)
    again = dict.fromkeys(wanted, 0.0)
    for key, term in group.terms.items():
        for label, column in zip(term.labels, group[key].toarray().T, strict=True):
            name = label.rpartition("|")[0]
            again["Intercept" if name == "1" else name] += column
    assert np.array_equal(matrix[:, len(design.fixed) :], np.column_stack(list(again.values())))


def test_a_column_that_names_the_clients_may_be_an_effect_too() -> None:
    df = places(60, 4).assign(site=lambda d: d.site.str[1:].astype(int))
    federation, design = from_formula(df, "y ~ 1 + site + (0 + site | site)")
    assert design.fixed == ("Intercept", "site")
    row = federation.x[federation.train[2][0]].numpy()
    assert row.tolist() == [1, 2, 2]
    assert federation.about["reader"](pd.DataFrame({"site": [3]})).tolist() == [[1, 3, 3]]


BUILD = """
import resource, sys
import numpy as np, pandas as pd, formulae
from hierfl.data.formula.federate import from_formula
who = np.repeat(np.arange(5000), 10)
rng = np.random.default_rng(0)
df = pd.DataFrame({"y": rng.normal(size=50000), "x": rng.normal(size=50000), "site": who})
from_formula(df.iloc[:100], "y ~ 1 + x + (1 + x | site)")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from_formula(df, "y ~ 1 + x + (1 + x | site)")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.cpu(3, "a process of its own, whose memory is measured")
def test_a_table_of_many_places_takes_memory_by_its_rows() -> None:
    """50,000 rows of 5,000 places. One indicator of places and rows is 2 GB; ten columns of the rows are 4 MB.

    What pandas and formulae copy on the way is some tens of megabytes: 300 leave room, and no place for the 2 GB.
    """
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000  # kilobytes
