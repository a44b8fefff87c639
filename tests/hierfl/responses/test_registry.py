"""What follows from the registry: lists, help, settings and the page of the documentation; and what is refused."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT
from support.responses import CASES

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.config import options
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.responses.reading import Cells
from hierfl.responses.registry import RESPONSES, STATED, check_columns, read_room, response_class, response_of
from hierfl.responses.student_t import StudentTResponse


@pytest.mark.parametrize("name", RESPONSES)
def test_what_is_read_from_a_file_is_what_its_class_says(name: str) -> None:
    entry, cls = RESPONSES[name], response_class(name)
    assert cls.__module__ == f"hierfl.responses.{entry.module}"
    assert {key: getattr(entry, key) for key in STATED} == {key: getattr(cls, key) for key in STATED}


def test_every_response_is_tested() -> None:
    assert set(CASES) == set(RESPONSES)


def test_help_and_settings_follow() -> None:
    *first, last = RESPONSES
    assert f"response: {', '.join(first)} or {last}. [default: gaussian]" in options()["family"].help
    fields = [f.name for f in dataclasses.fields(MixedEffects.Settings)]
    own = [name for entry in RESPONSES.values() for name in entry.settings]
    after = fields.index("family_prior") + 1
    assert own == ["degrees_of_freedom", "cuts", "intervals"]
    assert fields[after : after + len(own)] == own


def test_the_documentations_list_follows() -> None:
    """Add to docs/mixed-effects.md: a row of name, density and meaning of exp(beta)."""
    text = (ROOT / "docs" / "mixed-effects.md").read_text(encoding="utf-8")
    section = text.partition("## Responses")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `[^-].*$", section, re.MULTILINE)
    ratio = {entry.name: f"{entry.ratio} |" if entry.ratio else "|" for entry in RESPONSES.values()}
    assert sorted(rows) == sorted(
        f"| `{name}` | {response.about} | {ratio[name]}" for name, response in RESPONSES.items()
    )


def test_the_documented_diff_is_the_file() -> None:
    """Add to docs/extend.md what `git diff` says of it."""
    source = (ROOT / "hierfl" / "responses" / "lognormal.py").read_text(encoding="utf-8").splitlines()
    text = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    shown = text.partition("+++ b/hierfl/responses/lognormal.py\n")[2].partition("\n```")[0].splitlines()
    assert shown == [f"@@ -0,0 +1,{len(source)} @@", *(f"+{line}" for line in source)]


def test_a_response_is_one_file(tmp_path) -> None:
    """Read in its place of the list, without being imported; two of one name are refused."""
    (tmp_path / "tweedie.py").write_text(
        "import nowhere\nclass Tweedie(Response):\n    name = 'tweedie'\n    about = 'mean exp(eta)'\n    order = 5\n"
        "    power = float('1.5')\n"
    )
    (tmp_path / "helpers.py").write_text("class Helper:\n    order = 3\n")
    (entry,) = read_room(tmp_path).values()
    assert (entry.module, entry.cls, entry.name, entry.order, entry.columns) == ("tweedie", "Tweedie", "tweedie", 5, ())
    (tmp_path / "other.py").write_text("class Other(Response):\n    name = 'tweedie'\n    about = 'the same'\n")
    with pytest.raises(TypeError, match="a name of its own"):
        read_room(tmp_path)


@pytest.mark.parametrize("name", ["log-normal", "", None, 3, ["gaussian"]])
def test_an_unknown_family_is_refused_with_those_that_are(name: object) -> None:
    df = pd.DataFrame({"y": [1.0, 2.0], "x": [0.0, 1.0], "g": ["a", "b"]})
    with pytest.raises(UserError, match=r"unknown family .*; known: gaussian, student-t, .*poisson, .*cox$"):
        from_formula(df, "y ~ x + (1 | g)", family=name)  # type: ignore[arg-type]


def test_columns_and_settings_of_other_responses_are_refused() -> None:
    for name in RESPONSES:
        times = name in ("exponential", "weibull", "cox")
        for column, having, words in (
            ("known", name == "gaussian", f"errors belong to a gaussian response, not a {name} one"),
            ("event", times, f"belong to a time until something happens, not a {name} response"),
        ):
            if having:
                check_columns(name, [column])
            else:
                with pytest.raises(UserError, match=words):
                    check_columns(name, ["weight", column])
        for own, setting, words in (
            ("exponential", "cuts", "cuts are of an exponential response's hazard"),
            ("student-t", "degrees_of_freedom", "degrees_of_freedom are of a student-t response"),
            ("cox", "intervals", "intervals are of a cox response's hazard"),
        ):
            if name != own:
                given = {**dict.fromkeys(("cuts", "degrees_of_freedom", "intervals"), ""), setting: "4"}
                with pytest.raises(UserError, match=f"{words}, not of a {name} one"):
                    response_of(SimpleNamespace(family=name), SimpleNamespace(**given))


BINARY = ("binomial", "binomial-probit", "binomial-cloglog")
COUNTS = ("poisson", "negative-binomial", "nbinom1", "zero-inflated-poisson", "zero-inflated-negative-binomial",
          "hurdle-poisson", "hurdle-negative-binomial", "generalised-poisson")  # fmt: skip
ABOVE = ("truncated-poisson", "truncated-negative-binomial")
#: numbers that only some responses can have
NUMBERS = {
    "zeros and ones": ([0.0, 1.0], ABOVE),
    "counts": ([0.0, 3.0], (*BINARY, *ABOVE)),
    "fractions": ([0.5, 3.0], (*BINARY, *COUNTS, *ABOVE, "ordinal")),
    "negative": ([-1.0, 2.0], (*BINARY, *COUNTS, *ABOVE)),
}
POSITIVE = ("gamma", "lognormal", "exponential", "weibull", "cox")


@pytest.mark.parametrize("what", NUMBERS)
@pytest.mark.parametrize("name", RESPONSES)
def test_numbers_that_a_response_cannot_have_are_refused_in_one_line(name: str, what: str) -> None:
    values, refused = NUMBERS[what]
    refused = ("beta-binomial", "beta", *refused, *(POSITIVE if min(values) <= 0 else ()))
    cells = Cells("out", "numeric", np.array(values)[:, None])
    if name not in refused:
        assert response_class(name).read(cells).y.tolist() == ([1.0, 2.0] if name == "ordinal" else values)
        return
    with pytest.raises(UserError, match="'out'") as error:
        response_class(name).read(cells)
    assert "\n" not in str(error.value)
    assert name in str(error.value)


def test_degrees_of_freedom_without_an_end_go_to_one_or_to_infinity() -> None:
    """An estimate of 1.2 that the data do not hold is on its way to a Cauchy's, not to a normal's."""
    response = StudentTResponse(1.0, 1.0)
    assert [response.end("df", value) for value in (1.2, 40.0)] == [1.0, float("inf")]
    assert [response.at_bound("df", value).partition(":")[0] for value in (1.0, 1.2, float("inf"))] == [
        "at its lower bound", "", "without end",
    ]  # fmt: skip
    assert response.end("scale", 0.2) == 0.0
    assert not response.at_bound("scale", 1e9)
