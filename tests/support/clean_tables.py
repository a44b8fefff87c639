"""Ten clean tables as text, each with a model, for what is done to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

#: cells of a table, column by column, as text
Columns = dict[str, list[str]]


@dataclass(frozen=True)
class CleanTable:
    """A table whose numbers are known.

    Attributes:
        columns: its cells.
        options: of ``hierfl run mixed-effects``.
        numbers: columns of numbers that are predictors or the response.
        levels: columns of levels.
        client: the clients' column.
        said: columns of which the options declare something.
    """

    columns: Columns
    options: tuple[str, ...]
    numbers: tuple[str, ...]
    levels: tuple[str, ...]
    client: str
    declared: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.columns[self.client])


class _Draw:
    """Columns of one table, drawn from its number."""

    def __init__(self, seed: int, clients: int, each: int, names: str) -> None:
        self.rng, self.rows = np.random.default_rng(seed), clients * each
        self.who = [f"{names} {chr(65 + k)}" for k in range(clients) for _ in range(each)]
        self.effect = np.repeat(self.rng.normal(0, 0.7, clients), each)

    def decimals(self, digits: int, least: float, most: float) -> list[str]:
        """Numbers with this many digits after the point."""
        return [f"{value:.{digits}f}" for value in self.rng.uniform(least, most, self.rows)]

    def whole(self, least: int, most: int) -> list[str]:
        """Whole numbers, both ends in."""
        return [str(value) for value in self.rng.integers(least, most + 1, self.rows)]

    def level(self, *levels: str) -> list[str]:
        """Levels, each about as often."""
        return [str(value) for value in self.rng.permutation([levels[k % len(levels)] for k in range(self.rows)])]

    def dates(self) -> list[str]:
        """Days of two years."""
        return [str(np.datetime64("2021-01-01") + days) for days in self.rng.integers(0, 700, self.rows)]

    def response(self, *parts: list[str]) -> list[str]:
        """Around the clients' effects, and what the numbers among the parts add."""
        total = self.effect + self.rng.normal(0, 1, self.rows)
        for part in parts:
            values = np.array([float(cell) if cell else 0.0 for cell in part])
            total = total + 0.5 * (values - values.mean()) / values.std()
        return [f"{value:.2f}" for value in total]


def _leave_out(cells: list[str], count: int) -> None:
    """Makes some cells empty."""
    for k in range(count):
        cells[5 + 7 * k] = ""


def _wards(seed: int, missing: int = 0) -> CleanTable:
    draw = _Draw(seed, 6, 8, "ward")
    age, arm = draw.whole(18, 90), draw.level("placebo", "drug")
    y = draw.response(age)
    options = ("--formula", "y ~ age + arm + (1 | ward)", *(("--na", "drop") if missing else ()))
    _leave_out(age, missing)
    return CleanTable({"ward": draw.who, "arm": arm, "age": age, "y": y}, options, ("age", "y"), ("arm",), "ward")


def _firms(seed: int) -> CleanTable:
    draw = _Draw(seed, 5, 9, "firm")
    income, share = draw.whole(1200, 9800), draw.decimals(1, 3, 60)
    columns = {"firm": draw.who, "income": income, "share": share, "score": draw.response(income, share)}
    options = ("--formula", "score ~ income + share + (1 + share | firm)")
    return CleanTable(columns, options, ("income", "share", "score"), (), "firm")


def _sites(seed: int) -> CleanTable:
    draw = _Draw(seed, 5, 10, "Haus")
    age, weight = draw.decimals(1, 40, 66), draw.decimals(2, 50, 110)
    columns = {"site": [name.replace("Haus", "Häus") for name in draw.who], "age": age, "weight": weight}
    columns |= {"stage": draw.level("I", "II", "III"), "y": draw.response(age, weight)}
    _leave_out(columns["weight"], 3)
    options = ("--formula", "y ~ center(age) * stage + weight + (1 | site)", "--na", "drop")
    return CleanTable(columns, options, ("age", "weight", "y"), ("stage",), "site")


def _children(seed: int) -> CleanTable:
    draw = _Draw(seed, 6, 8, "district")
    age, children = draw.whole(20, 70), draw.level("0", "1", "2", "3+")
    columns = {"district": draw.who, "children": children, "age": age, "y": draw.response(age)}
    options = ("--formula", "y ~ children + age + (1 | district)", "--order", "children=0<1<2<3+")
    return CleanTable(columns, options, ("age", "y"), (), "district", ("children",))


def _countries(seed: int) -> CleanTable:
    draw = _Draw(seed, 6, 8, "team")
    country, size = draw.level("NA", "ZA", "BW"), draw.decimals(2, 1, 9)
    columns = {"team": draw.who, "country": country, "size": size, "y": draw.response(size)}
    _leave_out(columns["size"], 2)
    options = ("--formula", "y ~ country + size + (1 | team)", "--type", "country=category", "--na", "drop")
    return CleanTable(columns, options, ("size", "y"), (), "team", ("country",))


def _visits(seed: int) -> CleanTable:
    draw = _Draw(seed, 5, 8, "clinic")
    dose = draw.decimals(1, 0, 20)
    columns = {"clinic": draw.who, "visit": draw.dates(), "dose": dose, "y": draw.response(dose)}
    options = ("--formula", "y ~ visit + dose + (1 | clinic)", "--type", "visit=date")
    return CleanTable(columns, options, ("dose", "y"), (), "clinic", ("visit",))


def _seizures(seed: int) -> CleanTable:
    draw = _Draw(seed, 6, 8, "clinic")
    count = [str(value) for value in draw.rng.poisson(np.exp(1 + 0.3 * draw.effect))]
    columns = {"clinic": draw.who, "base": draw.decimals(1, 1, 30), "sex": draw.level("female", "male")}
    columns |= {"visit": draw.dates(), "seizures": count}
    _leave_out(columns["base"], 5)
    model = "seizures ~ base + sex + scale(visit) + (1 | clinic)"
    options = ("--formula", model, "--family", "poisson", "--type", "visit=date", "--na", "drop")
    return CleanTable(columns, options, ("base", "seizures"), ("sex",), "clinic", ("visit",))


def _cured(seed: int) -> CleanTable:
    draw = _Draw(seed, 8, 5, "ward")
    treated = draw.whole(5, 30)
    cured = [str(draw.rng.binomial(int(n), 0.4)) for n in treated]
    columns = {"ward": draw.who, "cured": cured, "treated": treated, "dose": draw.decimals(2, 0, 5)}
    options = ("--formula", "p(cured, treated) ~ dose + (1 | ward)", "--family", "binomial")
    return CleanTable(columns, options, ("cured", "treated", "dose"), (), "ward")


def _meta(seed: int) -> CleanTable:
    draw = _Draw(seed, 12, 2, "study")
    year, se = draw.whole(1990, 2020), draw.decimals(3, 0.1, 0.6)
    columns = {"study": draw.who, "year": year, "se": se, "effect": draw.response(year)}
    options = ("--formula", "effect ~ center(year) + (1 | study)", "--known-se", "se")
    return CleanTable(columns, options, ("year", "se", "effect"), (), "study")


#: by name; each is the same every time
CLEAN: dict[str, Callable[[], CleanTable]] = {
    "wards": lambda: _wards(1), "wards-missing": lambda: _wards(2, missing=4), "firms": lambda: _firms(3),
    "sites": lambda: _sites(4), "children": lambda: _children(5), "countries": lambda: _countries(6),
    "visits": lambda: _visits(7), "seizures": lambda: _seizures(8), "cured": lambda: _cured(9),
    "meta": lambda: _meta(10),
}  # fmt: skip
