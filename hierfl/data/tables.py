"""Tables: named ones, and csv files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError, unknown
from .reading.options import Reading
from .reading.read import ENDINGS, read_file
from .reading.saved_set import is_saved

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class NamedTable:
    """A table with the model that is usually fitted to it."""

    about: str
    frame: Callable[[], pd.DataFrame]
    formula: str
    client: str
    known_se: str = ""
    family: str = "gaussian"


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
        eight_schools, "effect ~ 1 + (1 | school)", "school", known_se="error",
    ),
    "radon-like": NamedTable(
        "simulated log radon in 919 houses of 85 counties, 1 to 116 each",
        radon_like, "log_radon ~ 1 + floor + log_uranium + (1 | county)", "county",
    ),
}  # fmt: skip


#: of a fit of a table, at most: it ends where it is done
ROUNDS = 200


def is_table(data: str) -> bool:
    """Whether ``--data`` names a table rather than arrays."""
    return data in TABLES or is_table_file(data)


def is_table_file(data: str) -> bool:
    """Whether it is the path of a table's file, or of the folder of a saved Hugging Face data set."""
    return data.lower().endswith(ENDINGS) or is_saved(data)


def stem(data: str) -> str:
    """What a table is called: its name, or its file's without the ending, or its folder's."""
    if data in TABLES:
        return data
    name = data.replace("\\", "/").rstrip("/").rpartition("/")[2]
    ending = max((end for end in ENDINGS if name.lower().endswith(end)), key=len, default="")
    return name.removesuffix(name[len(name) - len(ending) :])


def read(
    data: str, used: Collection[str] = (), text: Collection[str] = (), *, split: Collection[str] = (),
    reading: Reading | None = None, notes: bool = True, decimals: Collection[str] = (),
) -> pd.DataFrame:  # fmt: skip
    """A named table, or a file with a header.

    A file has no types, so they are found here. A column is whole numbers, numbers or truth values where every
    entry is one; else it is words. Entries of :data:`~hierfl.data.reading.missing_words.MISSING` are missing. A
    column of ``text`` is kept exactly as it is written, and lacks only what is empty: ``1``, ``01`` and ``1.0`` differ,
    and ``NA`` is a name.

    Args:
        data: a name of :data:`TABLES`, or the path of a file.
        used: columns whose values are used. In them, text that is not surely a category is refused.
        text: columns of names, the clients'.
        split: columns that the formula makes categories.
        reading: what the file does not say of itself; None for nothing.
        notes: whether a line says of categories that look like quantities.
        decimals: columns in whose numbers a point is surely a decimal mark.

    Raises:
        UserError: if there is no such table, the file cannot be read, or a column that is used is not sure.
    """
    if data in TABLES:
        if reading is not None and reading != Reading():
            raise UserError(f"{data} is a table of ours, which needs no options of reading")
        return TABLES[data].frame()
    if not is_table_file(data):
        raise unknown("table", data, [*TABLES, "FILE.csv"])
    return read_file(data, reading or Reading(), used=used, text=text, split=split, notes=notes, decimals=decimals)
