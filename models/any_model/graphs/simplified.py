"""Rewriting a graph of tensor operations so that it does less, and says the same.

What is computed twice is computed once; what changes nothing is left out; and a logarithm of an exponential is what was
exponentiated, as the mean of a Poisson distribution with a log link. Results differ by rounding alone, and where an
exponential over- or underflows: there the original has lost what it was of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
#: operations that move numbers and compute none; the first argument is what they move
MOVES = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.select.int, aten.slice.Tensor, aten.permute.default, aten.transpose.int, aten.alias.default,
    aten.clone.default,
})  # fmt: skip
#: of those, what changes the order of numbers in memory though shapes be the same
ORDERS = (aten.permute.default, aten.transpose.int, aten.clone.default)
#: so that 0 times a number is 0
LARGEST = torch.finfo(torch.float64).max
#: numbers with which an operation changes nothing
NEUTRAL: dict[Any, int] = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.add.Tensor: 0, aten.sub.Tensor: 0}


def pure(graph: Graph) -> bool:
    """Whether no operation changes a tensor in place, or draws a random number."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        tags = getattr(node.target, "tags", ())
        if (schema is not None and schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags:
            return False
    return True


def simplify(graph: Graph) -> None:
    """Rewrites a pure graph in place."""
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.op == "call_function":
            _without_logarithm(graph, node)
    for node in list(graph.nodes):
        if node.op == "call_function" and _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
    _once(graph)
    graph.eliminate_dead_code()


def _shape(node: Any) -> Any:
    """Shape and type of a node's value; None of what is no tensor."""
    return node.meta.get("about") if isinstance(node, Node) else None


def _changes_nothing(node: Node) -> bool:
    if not node.args or _shape(node) is None or _shape(node) != _shape(node.args[0]):
        return False
    if node.target in MOVES:
        return node.target not in ORDERS
    neutral = NEUTRAL.get(node.target)
    other = node.args[1] if len(node.args) > 1 else None
    return neutral is not None and isinstance(other, int | float) and other == neutral and not node.kwargs


def _exponent(node: Any) -> tuple[Node, list[Node]] | None:
    """y, and the moves from exp(y) to a node; None of what is no exponential."""
    moves: list[Node] = []
    while isinstance(node, Node) and (node.target in MOVES or _changes_nothing(node)):
        if node.target in MOVES:
            moves.append(node)
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.exp.default or not isinstance(node.args[0], Node):
        return None
    return node.args[0], moves[::-1]


def _without_logarithm(graph: Graph, node: Node) -> None:
    """log(exp(y)) is y, and xlogy(a, exp(y)) is a y, which is 0 where a is, whatever y."""
    position: dict[Any, int] = {aten.log.default: 0, aten.xlogy.Tensor: 1}
    at = position.get(node.target)
    exponent = None if at is None else _exponent(node.args[at])
    if exponent is None:
        return
    y, moves = exponent
    with graph.inserting_before(node):
        for move in moves:  # y may lie in memory otherwise than its exponential
            how: Any = aten.reshape.default if move.target is aten.view.default else move.target
            y = graph.call_function(how, (y, *move.args[1:]), dict(move.kwargs))
            y.meta = dict(move.meta)
        if at:
            finite = graph.call_function(aten.clamp.default, (y, -LARGEST, LARGEST))
            y = graph.call_function(aten.mul.Tensor, (node.args[0], finite))
    y.meta.setdefault("about", node.meta.get("about"))
    node.replace_all_uses_with(y)


def _once(graph: Graph) -> None:
    """Nodes with the same operation of the same arguments become the first of them."""
    first_nodes: dict[str, Node] = {}
    for node in list(graph.nodes):
        if node.op in ("call_function", "get_attr"):
            first = first_nodes.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
