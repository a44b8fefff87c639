"""Random formulas are refused, or call only what is listed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from formulae.environment import Environment
from formulae.parser import Parser
from formulae.scanner import Scanner
from support.tables import table

from hierfl.data.formula import gate
from hierfl.data.formula.calls import CALLS, NUMPY
from hierfl.data.formula.gate import evaluate, parse
from hierfl.errors import UserError

HOSTILE = [
    "torch.os.system('x')", "df.to_csv(x)", "np.save(x)", "center.__init__(x)", "x.sum()", "np.linalg.inv(x)", "{np}",
    "__import__('os')", "getattr(x, 'y')", "design_matrices(x)", "fixed", "np", "I", "scale", "[x]", "lambda", "'x'",
    "np.log(x, x)", "C(g, scale)", "bs(x, df=9999)", "x**99", "9**9", "print(x)", "`df.x`", "env", "self", "data",
]  # fmt: skip
COLUMNS = ["x", "z", "g", "h", "count", "`odd name`"]


def arithmetic(rng: random.Random, depth: int) -> str:
    pick = rng.random()
    if depth > 3 or pick < 0.35:
        return rng.choice([*COLUMNS, "1", "2.5", "0.1"])
    if pick < 0.38:
        return rng.choice(HOSTILE)
    if pick < 0.55:
        name = rng.choice(list(CALLS))
        count = max(1, CALLS[name].least)
        return f"{name}({', '.join(arithmetic(rng, depth + 1) for _ in range(count))})"
    if pick < 0.65:
        return f"({arithmetic(rng, depth + 1)})"
    if pick < 0.7:
        return f"({arithmetic(rng, depth + 1)})**{rng.choice(['2', '-1', '0.5', '17', 'x'])}"
    sign = rng.choice(["+", "-", "*", "/", "+", "*", "<", "==", ":", "|"])
    return f"{arithmetic(rng, depth + 1)} {sign} {arithmetic(rng, depth + 1)}"


def effects(rng: random.Random, depth: int) -> str:
    pick = rng.random()
    if depth > 2 or pick < 0.3:
        return rng.choice([*COLUMNS, "0", "1"])
    if pick < 0.34:
        return rng.choice(HOSTILE)
    if pick < 0.5:
        return rng.choice(["I({})", "{{{}}}", "scale({})", "np.exp({})", "log({})"]).format(arithmetic(rng, 1))
    if pick < 0.58:
        return f"({effects(rng, depth + 1)} + {effects(rng, depth + 1)})**{rng.choice('2399')}"
    if pick < 0.64:
        return f"({effects(rng, depth + 1)} | {rng.choice(['site', 'site', 'g', 'C(site)', '3'])})"
    return f"{effects(rng, depth + 1)} {rng.choice('++++-*:/')} {effects(rng, depth + 1)}"


def formulas(rng: random.Random, number: int) -> Iterator[str]:
    """Random ones; a third of them with a few characters changed."""
    letters = "~+-*/:|(){},=<>`'\"._ x1\n[]!%#;\\"
    for _ in range(number):
        text = f"{rng.choice(['y', 'y', 'np.exp(y)', 'I(y)'])} ~ {effects(rng, 0)} + (1 | site)"
        for _ in range(rng.choice([0, 0, 1, 3])):
            position = rng.randrange(len(text))
            text = text[:position] + rng.choice(letters) + text[position + rng.choice([0, 1]) :]
        yield text


def named_by_formulae(node: Any) -> Iterator[tuple[str, str]]:
    """Everything that formulae's own parser finds in a text: ("call" or "name", what)."""
    if isinstance(node, list | tuple):
        for part in node:
            yield from named_by_formulae(part)
        return
    kind = type(node).__name__
    if kind == "Call":
        yield "call", node.callee.name.lexeme
        yield from named_by_formulae(node.args)
    elif kind == "Variable":
        yield "name", node.name.lexeme
    elif kind == "QuotedName":
        yield "name", node.expression.lexeme[1:-1]
    elif kind == "Assign":
        yield from named_by_formulae(node.value)
    else:
        for part in ("expression", "left", "right"):
            yield from named_by_formulae(getattr(node, part, ()))


class Watched(dict):
    """A namespace that knows what was looked up in it and found."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        self.names.add(name)
        return value


def test_random_formulas_are_refused_or_call_only_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three witnesses: formulae's own parser, the callees that it fetches, and the names that it finds elsewhere."""
    from formulae.terms import call_resolver

    fetched: list[str] = []
    plain, df, watched = call_resolver.get_function_from_module, table(24), Watched(gate.namespace())

    def fetch(name: str, env: Environment) -> Any:
        fetched.append(name)
        return plain(name, env)

    monkeypatch.setattr(call_resolver, "get_function_from_module", fetch)
    monkeypatch.setattr(gate, "namespace", lambda: watched)
    passed = worked = 0
    for text in formulas(random.Random(22), 6000):
        try:
            formula = parse(text)
        except UserError:
            continue
        passed += 1
        tree = list(named_by_formulae(Parser(Scanner(formula.safe).scan()).parse()))
        assert {what for kind, what in tree if kind == "call"} <= set(CALLS), text
        inside = {name for term in formula.random for name in term.path[1:]}  # which formulae does not see
        named = {what for kind, what in tree if kind == "name"} - {"Sum", "Treatment"}
        assert formula.columns - inside <= named <= formula.columns, text
        if not formula.columns <= set(df.columns) or passed % 3:
            continue
        try:
            evaluate(formula, df)
            worked += 1
        except UserError:
            continue
    assert passed > 1000
    assert worked > 200
    assert fetched
    assert set(fetched) <= set(CALLS)
    assert watched.names <= {*NUMPY, "np"}
