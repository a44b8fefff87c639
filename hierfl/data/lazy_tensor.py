"""A tensor that is made when something is done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only


class LazyTensor(Tensor):
    """A tensor that is made when something is done with it: shape, type and device are known before.

    Inputs of which only a network's kept features are wanted are never gathered.
    """

    make: Callable[[], Tensor]
    made: Tensor | None

    @staticmethod
    def deferred(make: Callable[[], Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
        """What ``make`` will give, of this shape, and ``like``'s type and device."""
        lazy: LazyTensor = Tensor._make_wrapper_subclass(LazyTensor, shape, dtype=like.dtype, device=like.device)
        lazy.make, lazy.made = make, None
        return lazy

    @property
    def whole(self) -> Tensor:
        """It, made once."""
        if self.made is None:
            self.made = self.make()
        return self.made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Any operation is one on what has been made."""
        args, kwargs = tree_map_only(LazyTensor, lambda t: t.whole, (args, kwargs or {}))
        return func(*args, **kwargs)
