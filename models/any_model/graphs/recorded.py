"""Recording what a function of tensors does as a graph.

:func:`torch.fx.experimental.proxy_tensor.make_fx` does the same, and loads all of torch's compiler for more than a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class _Recording(TorchDispatchMode):
    """Adds every operation to a graph while it lasts."""

    def __init__(self, given: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.graph, self.root = Graph(), nn.Module()
        #: nodes by the tensors that they are; the tensors are kept, so that no other one takes their address
        self.nodes: dict[int, Node] = {}
        self.kept: list[Tensor] = []
        for i, value in enumerate(given):
            node = self.graph.placeholder(f"given_{i}")
            if value is not None:
                self.note(value, node)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # What torch adds otherwise loads its compiler.
        return False

    def note(self, value: Any, node: Node) -> None:
        if isinstance(value, Tensor):
            self.nodes[id(value)] = node
            self.kept.append(value)
            node.meta["about"] = value.shape, value.dtype
        elif isinstance(value, tuple | list):
            for i, part in enumerate(value):
                self.note(part, self.graph.call_function(_item, (node, i)))

    def node_of(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.nodes:  # a number of the model's text, or a tensor that it holds
            name = f"constant_{len(self.kept)}"
            self.root.register_buffer(name, value.detach())
            self.note(value, self.graph.get_attr(name))
        return self.nodes[id(value)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Does it, and notes it."""
        kwargs = dict(kwargs or {})
        made = func(*args, **kwargs)
        node = self.graph.call_function(func, tree_map(self.node_of, tuple(args)), tree_map(self.node_of, kwargs))
        self.note(made, node)
        return made


def _item(values: Sequence[Tensor], i: int) -> Tensor:
    return values[i]


def recorded(function: Callable[..., Tensor], given: Sequence[Tensor | None]) -> GraphModule:
    """The graph of ``function(*given)``: the same operations on other tensors of the same shapes."""
    recording = _Recording(given)
    with torch.no_grad(), recording:
        made = function(*given)
    recording.graph.output(recording.node_of(made))
    return GraphModule(recording.root, recording.graph)
