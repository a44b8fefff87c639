"""Graphs of the clients' log joint: what a model's text computes, traced once for each shape of what it is given.

A model's text runs under effect handlers and two levels of :func:`torch.func.vmap`, which takes about a millisecond for
each evaluation. A graph is the tensor operations alone. What depends on the data only is computed once for the clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from hierfl.errors import UserError

from .recorded import recorded
from .simplified import pure, simplify

log = logging.getLogger("hierfl")
#: how far a graph may be from what it was traced from, relative to the numbers' size
GRAPH_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Halves:
    """A graph in two: what needs the fixed arguments only, and the rest.

    Attributes:
        before: of the fixed arguments; a tuple.
        after: of the varying arguments, and of those.
    """

    before: Callable[..., Any]
    after: Callable[..., Tensor]


class Graphs:
    """Graphs of one function of tensors, by shapes."""

    def __init__(self) -> None:
        self.cache: dict[Any, Halves | None] = {}

    def for_function(
        self, function: Callable[..., Tensor], fixed: Sequence[Tensor | None], varying: Sequence[Tensor],
        derivatives: bool = False,
    ) -> Halves | None:  # fmt: skip
        """The graph of ``function(*fixed, *varying)``; None where it has none that says the same.

        Args:
            function: the same at each call.
            fixed, varying: tensors of the shapes in which it will be called, and values at which it is compared.
            derivatives: whether those by the varying arguments are compared, too.
        """
        key = (
            derivatives,
            *(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in (*fixed, *varying)),
        )
        if key not in self.cache:
            self.cache[key] = traced(function, fixed, varying, derivatives)
        return self.cache[key]


def traced(
    function: Callable[..., Tensor], fixed: Sequence[Tensor | None], varying: Sequence[Tensor], derivatives: bool
) -> Halves | None:
    """See :meth:`Graphs.for_function`."""
    with torch.no_grad():
        expected = function(*fixed, *varying)
        try:
            made = recorded(function, [*fixed, *varying])
            if not pure(made.graph):
                return None
            simplify(made.graph)
            halves = _halves(made, len(fixed))
            fixed_values = halves.before(*fixed)
            same = _close(halves.after(*varying, *fixed_values), expected)
        except (UserError, RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
            log.debug("a model without a graph runs as it is written: %s", error)
            return None
    if same and derivatives:
        pairs = zip(
            _slopes(lambda *at: halves.after(*at, *fixed_values), varying),
            _slopes(lambda *at: function(*fixed, *at), varying), strict=True,
        )  # fmt: skip
        same = all(_close(traced_slope, slope) for traced_slope, slope in pairs)
    if not same:
        log.debug("a model whose graph says something else runs as it is written")
    return halves if same else None


def _slopes(function: Callable[..., Tensor], varying: Sequence[Tensor]) -> Sequence[Tensor]:
    at = [values.detach().clone().requires_grad_() for values in varying]
    with torch.enable_grad():
        h = function(*at)
        return torch.autograd.grad(h.sum(), at, materialize_grads=True) if h.requires_grad else varying


def _close(value: Tensor, expected: Tensor) -> bool:
    finite = expected.isfinite()
    if value.shape != expected.shape:
        return False
    return torch.allclose(value[finite], expected[finite], rtol=GRAPH_TOLERANCE, atol=GRAPH_TOLERANCE)


def _halves(made: GraphModule, fixed: int) -> Halves:
    nodes = list(made.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    varies = set(given[fixed:])
    for node in nodes:
        if varies.intersection(node.all_input_nodes):
            varies.add(node)
    output = nodes[-1]
    crossing = [
        node for node in nodes if node not in varies and any(user in varies or user is output for user in node.users)
    ]
    before, after = Graph(), Graph()
    first: dict[Node, Node] = {}
    for node in nodes:
        if node in given[:fixed] or (node not in varies and node is not output):
            first[node] = before.node_copy(node, first.__getitem__)
    before.output(tuple(first[node] for node in crossing))
    second = {node: after.placeholder(node.name) for node in (*given[fixed:], *crossing)}
    for node in nodes:
        if node in varies and node not in second and node is not output:
            second[node] = after.node_copy(node, second.__getitem__)
    after.output(second[output.args[0]])
    root: nn.Module = made
    return Halves(GraphModule(root, before), GraphModule(root, after))
