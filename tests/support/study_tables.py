"""Tables of six sites, and formulas of every kind that a study may have."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.formula.row_numbers import RowColumns

DICTIONARY = Dictionary(
    {
        "y": Column("number"), "hits": Column("whole", least=0), "sick": Column("flag"), "gap": Column("number"),
        "se": Column("number", least=0), "age": Column("number", least=0, most=120, unit="years"),
        "year": Column("whole", least=1990, most=2020),
        "sex": Column("category", ("f", "m")), "stage": Column("category", ("I", "II", "III", "IV")),
        "grade": Column("category", (3, 1, 2)), "smokes": Column("flag"),
    }
)  # fmt: skip
FORMULAS: list[tuple[str, str, RowColumns]] = [
    ("y ~ 1 + scale(age):sex + stage + log(age) + (1 + center(age) | site)", "gaussian", RowColumns()),
    ("y ~ stage*smokes + year + (1 | site)", "gaussian", RowColumns(known_se="se")),
    ("log(hits + 1) ~ C(grade) + standardize(year) + (year | site)", "gaussian", RowColumns()),
    ("y ~ age + offset(gap) + (1 | site)", "gaussian", RowColumns(weights="se")),
    ("hits ~ age + log(gap) + (1 + smokes | site)", "poisson", RowColumns()),
    ("y ~ stage + age + (0 + sex | site) + (0 + age + center(gap) | site)", "gaussian", RowColumns()),
    ("hits ~ age + offset(log(gap)) + (1 | site)", "negative-binomial", RowColumns(weights="se")),
    ("sick ~ sex + center(gap) + (1 | site) + (0 + age | site)", "binomial", RowColumns()),
    ("p(hits, year) ~ sex + (1 | site)", "beta-binomial", RowColumns()),
    (
        "cbind(hits, year - hits) ~ C(stage, levels=c('II', 'I', 'IV', 'III')) + (1 + age || site)",
        "binomial",
        RowColumns(),
    ),
    ("hits / year ~ factor(grade, levels=c(2, 3, 1)) + (0 + stage || site)", "binomial", RowColumns(weights="year")),
    ("stage ~ age + sex + (1 | site)", "ordinal", RowColumns()),
    ("gap ~ age + (1 | site)", "weibull", RowColumns(event="sick")),
    ("gap ~ center(age) + (1 | site)", "lognormal", RowColumns(weights="se")),
]


def pooled(sites: int = 6, seed: int = 0) -> pd.DataFrame:
    """300 rows; the first site has never seen stage IV, nor grade 2."""
    rng, n = np.random.default_rng(seed), 300
    df = pd.DataFrame(
        {
            "site": rng.choice([f"s{j}" for j in range(sites)], n), "age": rng.normal(60, 12, n).round(1),
            "year": rng.integers(1990, 2020, n), "gap": rng.lognormal(0, 2, n), "sex": rng.choice(["f", "m"], n),
            "stage": rng.choice(["I", "II", "III", "IV"], n, p=[0.5, 0.3, 0.15, 0.05]),
            "grade": rng.choice([1, 2, 3], n), "smokes": rng.integers(0, 2, n), "se": rng.random(n) + 0.5,
            "hits": rng.poisson(2, n), "sick": rng.integers(0, 2, n), "note": "private",
        }
    )  # fmt: skip
    df["y"] = 1 + 0.03 * df.age + rng.normal(size=n)
    return df[~((df.site == "s0") & ((df.stage == "IV") | (df.grade == 2)))].reset_index(drop=True)


def parts(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What each site has."""
    return {str(name): rows.drop(columns="site").reset_index(drop=True) for name, rows in df.groupby("site")}
