"""Places of a source file at which a mutant may be made, found in its syntax tree.

A site has one kind and one or more replacements, each a piece of the source that is replaced by another text:

    sign              unary minus dropped; + and - exchanged, * and / exchanged
    comparison        < and <=, > and >=, == and !=, is and is not, in and not in exchanged
    constant          an integer n to n + 1, a float x to 2 x (0.0 to 1.0), True and False exchanged
    swapped argument  two positional arguments of a call exchanged
    dropped call      f(x, ...) to x; a call that is a statement to pass

Left alone are annotations, decorators, texts (f-strings too: Python 3.11 does not say where their parts are),
``__all__``, a class's words of lists (:data:`WORDS`), and what stands below ``if TYPE_CHECKING``. The + and * of texts
and lists that are seen to be such are no signs.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

KINDS = ("sign", "comparison", "constant", "swapped argument", "dropped call")
#: attributes of a method's class that lists print
WORDS = {"about", "family", "stays", "sent", "order"}
#: fields of syntax nodes that are not behaviour
SKIPPED = {"annotation", "returns", "decorator_list"}
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
#: operands of which + and * make longer texts and lists
SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
#: expressions that need no parentheses wherever they stand
ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


class Change(NamedTuple):
    """Bytes of a file, from the first to behind the last, and what replaces them."""

    start: int
    end: int
    new: bytes


@dataclass(frozen=True)
class Site:
    """A place, and what it may be changed to.

    Attributes:
        kind: one of :data:`KINDS`.
        changes: the replacements, each a mutant.
    """

    kind: str
    changes: tuple[Change, ...]


class Source:
    """A file's bytes, with the places of its nodes and tokens.

    Args:
        text: UTF-8, as it is in the file.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        lines = text.split(b"\n")
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.tokens: list[tuple[int, int, str]] = []
        for token in tokenize.generate_tokens(io.StringIO(text.decode()).readline):
            if token.type in (tokenize.OP, tokenize.NAME):
                row, column = token.start
                start = self.starts[row - 1] + len(lines[row - 1].decode()[:column].encode())
                self.tokens.append((start, start + len(token.string.encode()), token.string))
        self._token_starts = [start for start, _, _ in self.tokens]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The first byte of a node, and the one behind its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def piece(self, node: ast.expr | ast.stmt) -> bytes:
        """A node's source, without the parentheses around it."""
        start, end = self.span(node)
        return self.text[start:end]

    def operator(self, symbol: str, start: int, end: int) -> tuple[int, int]:
        """Where an operator of one or two words is between two operands, parentheses and comments left out."""
        words, first = symbol.split(), bisect_left(self._token_starts, start)
        for k in range(first, len(self.tokens)):
            tokens = self.tokens[k : k + len(words)]
            if tokens[-1][1] <= end and [token[2] for token in tokens] == words:
                return tokens[0][0], tokens[-1][1]
        raise LookupError(f"no {symbol} between bytes {start} and {end}")


def sites(text: bytes) -> list[Site]:
    """All sites of a file, in the order of its syntax tree.

    Args:
        text: the file's bytes, UTF-8.
    """
    source = Source(text)
    return [site for node, statement in mutable(ast.parse(text)) for site in made(source, node, statement)]


def mutable(node: ast.AST, in_class: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """A node and those below it that may be changed; whether each is a call whose value nobody uses."""
    if isinstance(node, ast.JoinedStr) or named(node, {"__all__"}) or (in_class and named(node, WORDS)):
        return
    statement = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    yield node, statement
    for name, value in ast.iter_fields(node):
        if name in SKIPPED or (name == "body" and isinstance(node, ast.If) and for_types(node.test)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                below = mutable(child, isinstance(node, ast.ClassDef) and name == "body")
                if statement:  # it is dropped as a statement; what it is called with may be swapped
                    call, _ = next(below)
                    yield call, True
                yield from below


def named(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement assigns one of these names."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id in names for target in targets)


def for_types(test: ast.expr) -> bool:
    """Whether a condition is ``TYPE_CHECKING``."""
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def made(source: Source, node: ast.AST, statement: bool) -> Iterator[Site]:
    """The sites that are this very node."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        start, end = source.span(node)
        yield Site("sign", (Change(start, end, source.text[start + 1 : end].lstrip()),))
    elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS and not (sequence(node.left) or sequence(node.right)):
        yield exchanged(source, "sign", SIGNS[type(node.op)], node.left, node.right)
    elif isinstance(node, ast.AugAssign) and type(node.op) in SIGNS and not sequence(node.value):
        old, new = SIGNS[type(node.op)]
        yield exchanged(source, "sign", (f"{old}=", f"{new}="), node.target, node.value)
    elif isinstance(node, ast.Compare):
        for (left, right), op in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            yield exchanged(source, "comparison", COMPARISONS[type(op)], left, right)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool | int | float):
            yield Site("constant", (Change(*source.span(node), repr(other(node.value)).encode()),))
    elif isinstance(node, ast.Expr) and statement:
        yield Site("dropped call", (Change(*source.span(node), b"pass"),))
    elif isinstance(node, ast.Call):
        yield from of_call(source, node, statement)


def sequence(node: ast.expr) -> bool:
    """Whether an operand is seen to be a text or a list."""
    return isinstance(node, SEQUENCES) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def exchanged(source: Source, kind: str, symbols: tuple[str, str], left: ast.expr, right: ast.expr) -> Site:
    """An operator's site."""
    between = source.span(left)[1], source.span(right)[0]
    return Site(kind, (Change(*source.operator(symbols[0], *between), symbols[1].encode()),))


def other(value: bool | int | float) -> bool | int | float:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) or not value else value * 2


def of_call(source: Source, call: ast.Call, statement: bool) -> Iterator[Site]:
    """A call's two sites: dropped unless it is a statement, its arguments swapped."""
    plain = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    swaps = []
    for first, second in combinations(plain, 2):
        (start, a), (b, end), (former, latter) = (
            source.span(first),
            source.span(second),
            map(source.piece, (first, second)),
        )
        if former != latter:
            swaps.append(Change(start, end, latter + source.text[a:b] + former))
    if swaps:
        yield Site("swapped argument", tuple(swaps))
    if not statement and call.args and call.args[0] is next(iter(plain), None):
        piece = source.piece(call.args[0])
        yield Site(
            "dropped call", (Change(*source.span(call), piece if isinstance(call.args[0], ATOMS) else b"(%b)" % piece),)
        )
