"""The tool that draws mutants and runs the tests on them: what it draws, and what it makes of that."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.mutant_draw import FLOORS, draw, share, splice
from support.mutant_runs import FAILED, below, own_tests
from support.mutant_sites import KINDS, Change, sites
from support.mutant_table import table

SOURCE = '''"""A docstring: 1 + 2 < 3, f(x, y)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

if TYPE_CHECKING:
    WIDTH = max(80, 100) + 1

__all__ = ["Line", *sorted({"λ": 1})]


@dataclass(frozen=True, order=sum([1, 2]) > 2)
class Line:
    """Another: 4 * 5."""

    order = 10 + 1
    about: ClassVar[str] = str("a line", 7)
    slope: Annotated[float, 1 + 2] = 1.5

    def at(self, x: Literal[3, 4], λ: float = 0.0) -> Literal[5, 6]:
        """A third: -1."""
        print(f"{x + 1:>{2 * 3}}", x)
        if λ is not None and 0 < x <= 10 and x not in (1, 2):
            x -= 1  # a comment: x < 1
        return (  # < another
            self.slope * (x)
        ) + min(λ + 2, -x, *[x])


def text(n: int, exact: bool = True) -> str:
    return "-" * n + format(n / 2 == 1, str(exact))
'''
#: what must not be touched: lines of SOURCE
KEPT = (1, 9, 11, 14, 16, 18, 19, 23)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with two files on each floor, and results that are none."""
    root = tmp_path_factory.mktemp("tree")
    for floor in FLOORS:
        (root / floor / "room").mkdir(parents=True)
        (root / floor / "room" / "a.py").write_text(SOURCE)
        (root / floor / "b.py").write_text(SOURCE.replace("Line", "Straight"))
    (root / "experiments" / "results").mkdir()
    (root / "experiments" / "results" / "c.py").write_text(SOURCE)
    return root


@pytest.fixture(scope="module")
def drawn(tree: Path) -> list[dict[str, Any]]:
    return draw(tree)["mutants"]


def test_the_same_seed_draws_the_same(tree: Path, drawn: list[dict[str, Any]]) -> None:
    assert json.loads(json.dumps(draw(tree)["mutants"])) == drawn
    assert draw(tree, seed=47)["mutants"] != drawn


def test_floors_and_kinds_have_their_shares(drawn: list[dict[str, Any]]) -> None:
    assert [mutant["number"] for mutant in drawn] == list(range(1, 31))
    assert Counter(mutant["floor"] for mutant in drawn) == dict(zip(FLOORS, (8, 8, 7, 7), strict=True))
    for floor in FLOORS:
        kinds = Counter(mutant["kind"] for mutant in drawn if mutant["floor"] == floor)
        assert set(kinds) == set(KINDS)
        assert set(kinds.values()) == {1, 2}
        assert {mutant["file"] for mutant in drawn if mutant["floor"] == floor} <= {
            f"{floor}/b.py",
            f"{floor}/room/a.py",
        }


def test_a_mutant_differs_in_its_segment_alone_and_compiles(tree: Path, drawn: list[dict[str, Any]]) -> None:
    for mutant in drawn:
        text = (tree / mutant["file"]).read_bytes()
        changed = splice(text, mutant)
        compile(changed, mutant["file"], "exec", dont_inherit=True)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        before, behind = (
            b"".join(text.splitlines(True)[k]) for k in (slice(0, mutant["line"] - 1), slice(mutant["span"][2], None))
        )
        assert changed.startswith(before)
        assert changed.endswith(behind)
        assert len(changed) - len(text) == len(mutant["replaced"].encode()) - len(mutant["original"].encode())


def test_a_file_that_has_changed_is_refused(tree: Path, drawn: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="has changed since mutant 1 was drawn"):
        splice((tree / drawn[0]["file"]).read_bytes() + b"#", drawn[0])


def test_all_sites_of_a_file() -> None:
    text = SOURCE.encode()
    counts = Counter(
        (site.kind, text[start:end].decode(), new.decode())
        for site in sites(text)
        for start, end, new in site.changes
        if text.count(b"\n", 0, start) >= 20
    )
    assert counts == Counter(
        {
            ("sign", "-=", "+="): 1, ("sign", "*", "/"): 1, ("sign", "+", "-"): 3, ("sign", "-x", "x"): 1,
            ("sign", "/", "*"): 1,
            ("comparison", "is not", "is"): 1, ("comparison", "<", "<="): 1, ("comparison", "<=", "<"): 1,
            ("comparison", "not in", "in"): 1, ("comparison", "==", "!="): 1,
            ("constant", "0.0", "1.0"): 1, ("constant", "0", "1"): 1, ("constant", "10", "11"): 1,
            ("constant", "1", "2"): 3, ("constant", "2", "3"): 3, ("constant", "True", "False"): 1,
            ("swapped argument", 'f"{x + 1:>{2 * 3}}", x', 'x, f"{x + 1:>{2 * 3}}"'): 1,
            ("swapped argument", "λ + 2, -x", "-x, λ + 2"): 1,
            ("swapped argument", "n / 2 == 1, str(exact)", "str(exact), n / 2 == 1"): 1,
            ("dropped call", 'print(f"{x + 1:>{2 * 3}}", x)', "pass"): 1,
            ("dropped call", "min(λ + 2, -x, *[x])", "(λ + 2)"): 1,
            ("dropped call", "format(n / 2 == 1, str(exact))", "(n / 2 == 1)"): 1,
            ("dropped call", "str(exact)", "exact"): 1,
        }
    )  # fmt: skip


def test_docstrings_annotations_decorators_and_lists_are_left_alone() -> None:
    text = SOURCE.encode()
    changes = [change for site in sites(text) for change in site.changes]
    lines = {text.count(b"\n", 0, change.start) + 1 for change in changes}
    assert not lines & set(KEPT)
    assert {ast.get_docstring(ast.parse(applied(text, change))) for change in changes} == {
        "A docstring: 1 + 2 < 3, f(x, y)."
    }
    kept = {tuple(annotations(ast.parse(applied(text, change)))) for change in changes}
    assert kept == {tuple(annotations(ast.parse(text)))}


def applied(text: bytes, change: Change) -> bytes:
    return text[: change.start] + change.new + text[change.end :]


def annotations(tree: ast.AST) -> list[str]:
    return [
        ast.unparse(part)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part
    ]


def test_shares_are_dealt_in_turns_as_far_as_there_is_something() -> None:
    assert share(8, {"a": 9, "b": 1, "c": 9}) == {"a": 4, "b": 1, "c": 3}
    with pytest.raises(ValueError, match="3 sites, and 4 mutants"):
        share(4, {"a": 1, "b": 2})


def test_tests_of_the_own_room_come_first(tmp_path: Path) -> None:
    files = {
        "models/test_fedpop.py": "", "models/test_fedpop_population.py": "", "models/test_other.py": "",
        "inference/test_a.py": "from hierfl.models.fedpop import F", "inference/test_b.py": "hierfl.models.fedpops",
        "inference/run/test_c.py": "from hierfl.models import fedpop", "house/test_d.py": "hierfl.models.fedpop",
        "inference/run/deep/test_fit.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    assert own_tests(tmp_path, "models/fedpop.py") == [
        "tests/models/test_fedpop.py", "tests/models/test_fedpop_population.py", "tests/inference/run/test_c.py",
        "tests/inference/test_a.py",
    ]  # fmt: skip
    assert own_tests(tmp_path, "inference/run/none/fit.py") == [
        "tests/inference/run/deep/test_fit.py", "tests/inference/run/test_c.py",
    ]  # fmt: skip
    assert below("tests/models/test_other.py", ["tests/models"])
    assert not below("tests/models/test_other.py", ["tests/mod"])


def test_the_test_that_failed_is_read() -> None:
    output = (
        "..F\n=== short test summary info ===\nFAILED tests/a.py::test_b[1-x] - assert 1 - 2 == 0\n!!! stopping !!!\n"
    )
    failure = FAILED.search(output)
    assert failure is not None
    assert failure.groups() == ("tests/a.py::test_b[1-x]", "assert 1 - 2 == 0")


def test_what_is_shown(drawn: list[dict[str, Any]]) -> None:
    survived = {"killed_by": None, "phase": None, "why": None, "seconds": 3.0}
    killed = {"killed_by": "tests/a.py::test_b", "phase": "own room, quick set", "why": "assert", "seconds": 2.0}
    records = [
        {**drawn[0], **killed},
        {**drawn[1], **survived, "judged": "equivalent: rounds"},
        {**drawn[2], **survived},
    ]
    records += [{**drawn[3], **survived, "slow": killed}, drawn[-1]]
    lines = table(records).splitlines()
    assert "killed by tests/a.py::test_b (own room, quick set) | 2 |" in lines[2]
    assert "survived; equivalent: rounds | 3 |" in lines[3]
    assert "survived; slow: killed by tests/a.py::test_b (own room, quick set) | 5 |" in lines[5]
    assert "not run" in lines[6]
    assert lines[-1] == (
        "all: 5 mutants, 4 run, 1 killed by the quick set, 3 survived it: 1 equivalent, 1 killed by the slow set"
    )
