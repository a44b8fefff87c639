"""Tables: named ones, and csv files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from .formulas import Family


@dataclass(frozen=True)
class NamedTable:
    """A table with the model that is usually fitted to it."""

    about: str
    frame: Callable[[], pd.DataFrame]
    formula: str
    client: str
    error: str = ""
    family: Family = "gaussian"
    rounds: int = 30


def eight_schools() -> pd.DataFrame:
    """What coaching did in eight schools, with the standard errors of the eight estimates (Rubin, 1981)."""
    import pandas as pd

    return pd.DataFrame(
        {
            "school": list("ABCDEFGH"),
            "effect": [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
            "error": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
        }
    )


def radon_like() -> pd.DataFrame:
    """Simulated: 919 houses in 85 counties, as unbalanced as Minnesota's radon survey (Gelman and Hill, 2007, ch. 12).

    log_radon = 1.45 - 0.7 floor + 0.7 log_uranium + county (standard deviation 0.3) + N(0, 0.75^2). floor is 1 where it
    was measured on the first floor, not in the basement; uranium belongs to the county. Four counties have one house,
    the largest has 116.
    """
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(85)
    sizes = np.sort(np.floor(np.exp(rng.normal(1.8, 0.95, 81))).astype(int).clip(2, 100))
    sizes = np.r_[[1] * 4, sizes]
    sizes[-1] = 116
    while sizes[:-1].sum() != 919 - 116:  # the others share what is left
        j = int(rng.integers(4, 84))
        sizes[j] = np.clip(sizes[j] + np.sign(919 - 116 - sizes[:-1].sum()), 2, 115)
    uranium, effect = rng.normal(0, 0.4, 85), rng.normal(0, 0.3, 85)
    who = np.repeat(np.arange(85), sizes)
    floor = (rng.random(len(who)) < 0.17).astype(int)
    radon = 1.45 - 0.7 * floor + (0.7 * uranium + effect)[who] + rng.normal(0, 0.75, len(who))
    return pd.DataFrame(
        {
            "county": [f"county-{j:02d}" for j in who],
            "log_radon": radon.round(4),
            "floor": floor,
            "log_uranium": uranium[who].round(4),
        }
    )


TABLES: dict[str, NamedTable] = {
    "eight-schools": NamedTable(
        "effects of coaching in 8 schools, with known standard errors (Rubin, 1981)",
        eight_schools, "effect ~ 1 + (1 | school)", "school", error="error", rounds=60,
    ),
    "radon-like": NamedTable(
        "simulated log radon in 919 houses of 85 counties, 1 to 116 each",
        radon_like, "log_radon ~ 1 + floor + log_uranium + (1 | county)", "county",
    ),
}  # fmt: skip


def is_table(data: str) -> bool:
    """Whether ``--data`` names a table rather than arrays."""
    return data in TABLES or data.endswith(".csv")


def read(data: str) -> pd.DataFrame:
    """A named table, or a csv file.

    Raises:
        UserError: if there is no such table, or the file cannot be read.
    """
    if data in TABLES:
        return TABLES[data].frame()
    if not data.endswith(".csv"):
        raise unknown("table", data, [*TABLES, "FILE.csv"])
    import pandas as pd

    try:
        df = pd.read_csv(Path(data))
    except FileNotFoundError as error:
        raise UserError(f"no file {data}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{data} cannot be read as csv: {error}") from error
    if df.empty:
        raise UserError(f"{data} has no rows")
    if len(df.columns) == 1 and (";" in df.columns[0] or "\t" in df.columns[0]):
        raise UserError(f"{data} has one column, {df.columns[0]!r}: a csv file's columns are separated by commas")
    return df
