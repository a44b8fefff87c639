"""An accelerator on any machine: tensors of a device of their own, whose numbers lie where every machine has them.

Within ``simulated()`` the device :data:`DEVICE` holds numbers. It is torch's "meta", whose tensors hold none by
themselves; here they are computed on the CPU, so that results are the CPU's to the bit. What a real device refuses is
refused: an operation on tensors of both devices (scalars of the CPU are let through, as on CUDA). What makes the host
wait for a real device is counted, with the line of this project that did it: a number read, a copy to the host, a copy
from it that is not said to be non_blocking, a tensor whose shape depends on numbers.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch
from support.installed import checkout_path
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
#: operations that wait for the device: they read a number, or their result's shape depends on numbers
WAITING = {
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten.unique_dim", "aten.equal",
    "aten.repeat_interleave", "aten._linalg_eigh", "aten._linalg_check_errors", "aten.bincount",
    "aten.unique_consecutive",
}  # fmt: skip


def _tensors(*values: Any) -> list[Tensor]:
    """Those among an operation's arguments or results (torch's pytree does it, too, and takes most of the time)."""
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(*value)
        elif isinstance(value, dict):
            tensors += _tensors(*value.values())
    return tensors


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same arguments or results with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_changed(item, change) for item in value]) if value else value
    if isinstance(value, dict):
        return {name: _changed(item, change) for name, item in value.items()}
    return value


class Held(Tensor):
    """A tensor of the simulated device.

    Attributes:
        inner: its numbers, on the CPU.
    """

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Held:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Held({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the simulation")


class Waits(Counter):
    """How often the host waited, by operation and line ("inference/run/fit.py:196"); kept while :attr:`on`."""

    on = True

    def add(self, operation: str) -> None:
        """One more."""
        if self.on:
            self[operation, _line()] += 1


class Tape:
    """Operations on the device while they are recorded: without effect, and repeated by :meth:`replay`.

    As a CUDA graph does, it repeats operations on the same memory; whatever came from the host is as it was.
    """

    def __init__(self) -> None:
        self._operations: list[tuple[Any, Any, Any, list[Tensor], set[int]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Computes, and remembers what was there where something is changed."""
        arguments = func._schema.arguments
        given = [*zip(arguments, args), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]  # noqa: B905
        for changed in _tensors([value for a, value in given if a.alias_info is not None and a.alias_info.is_write]):
            if _memory(changed) not in self._made and _memory(changed) not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(changed.untyped_storage())
                self._before[_memory(changed)] = whole, whole.clone()
        results = func(*args, **kwargs)
        new = self._new(results, (args, kwargs))
        self._operations.append((func, args, kwargs, _tensors(results), {id(value) for value in new}))
        self._made |= {_memory(value) for value in new}
        return results

    @staticmethod
    def _new(results: Any, given: Any) -> list[Tensor]:
        """Results that lie in memory of their own."""
        known = {_memory(value) for value in _tensors(given)}
        return [v for v in _tensors(results) if _memory(v) not in known]

    def rewind(self) -> None:
        """Undoes what has been changed, and spoils what has been made."""
        for whole, before in self._before.values():
            whole.copy_(before)
        for *_, results, new in self._operations:
            for value in results:
                if id(value) in new:
                    value.fill_(torch.nan if value.is_floating_point() else 0)

    def replay(self) -> None:
        """All operations, on the same memory."""
        for func, args, kwargs, results, new in self._operations:
            for value, now in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                if id(value) in new:
                    value.copy_(now)


def _memory(value: Tensor) -> int:
    return value.untyped_storage()._cdata


class SimulatedRecorder:
    """Records operations of the simulated device: what waits for it, or comes from the host, is refused meanwhile."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def run(self, compute: Any) -> Any:
        """See :class:`hierfl.recorder.Recorder`."""
        return compute()

    def record(self, compute: Any) -> Any:
        """See :class:`hierfl.recorder.Recorder`."""
        tape = Tape()
        _TAPES.append(tape)
        try:
            results = compute()
        finally:
            _TAPES.pop()
        tape.rewind()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return results, replay


def _as_recorded(value: Tensor) -> Tensor:
    """Numbers of the host as they are now: a recording does not read them again."""
    if isinstance(value, Held):
        return value
    if value.dim():
        raise RuntimeError(f"the host's memory {tuple(value.shape)} is read by what is being recorded")
    return value.clone()


#: what is being recorded, the innermost last
_TAPES: list[Tape] = []


@cache
def _about(func: Any) -> tuple[str, bool]:
    """An operation's name, and whether it changes a tensor's shape in place."""
    return func._overloadpacket._qualified_op_name.replace("::", "."), torch.Tag.inplace_view in func.tags


class _Operations(TorchDispatchMode):
    """What every operation does."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(not issubclass(kind, Held) and kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # lazy tensors make themselves first
        kwargs, (name, changes_shape) = dict(kwargs or {}), _about(func)
        tensors = _tensors(args, kwargs)
        wrapped = [value for value in tensors if isinstance(value, Held)]
        on_device = bool(wrapped)
        if kwargs.get("device") is not None:
            on_device = torch.device(kwargs["device"]).type == DEVICE.type
            kwargs["device"] = torch.device("cpu")
        if name == "aten._to_copy":
            if bool(wrapped) != on_device and (wrapped or not kwargs.get("non_blocking")):
                self._wait(name)
        elif name == "aten.copy_":
            to, of, lazily = (*args, False)[:3]
            if isinstance(to, Held) != isinstance(of, Held) and (isinstance(of, Held) or not lazily):
                self._wait(name)
        else:
            self._check(name, args, wrapped, [value for value in tensors if not isinstance(value, Held)])
        tape = _TAPES[-1] if _TAPES and on_device else None
        if tape is not None:
            args, kwargs = _changed((args, kwargs), _as_recorded)
        plain = _changed((args, kwargs), lambda value: value.inner if isinstance(value, Held) else value)
        known = {id(value.inner): value for value in wrapped}
        results = func(*plain[0], **plain[1]) if tape is None else tape.call(func, *plain)
        if changes_shape and wrapped:  # the shape of what holds the numbers follows
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
                func(*args, **kwargs)
        if not on_device:
            return results
        return _changed(results, lambda value: known[id(value)] if id(value) in known else Held(value))

    def _wait(self, name: str) -> None:
        if _TAPES:
            raise RuntimeError(f"{name} waits for the device, which is being recorded")
        self.waits.add(name)

    def _check(self, name: str, args: Any, wrapped: list[Held], others: list[Tensor]) -> None:
        """Refuses tensors of two devices, and counts what waits."""
        if not wrapped:
            return
        by_index = name in ("aten.index", "aten.index_put_", "aten.index_put")
        if any(value.dim() for value in others) and not by_index:
            raise RuntimeError(
                f"{name} on tensors of two devices: {[tuple(v.shape) for v in wrapped]} there, "
                f"{[tuple(v.shape) for v in others]} here"
            )
        # Indices on the host are copied to the device, and waited for.
        by_mask = by_index and any(isinstance(v, Tensor) and v.dtype == torch.bool for v in args[1])
        if name in WAITING or by_mask or (by_index and any(value.dim() for value in others)):
            self._wait(name)


class _Functions(TorchFunctionMode):
    """What torch's Python functions do before any operation is seen: numbers of the host go to the device by a copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.new_tensor:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(
                kwargs.get("device", args[0].device)
            )
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(i).to(args[0].device) if isinstance(i, list | range) else i for i in index)
            return func(args[0], index, *args[2:])
        if func is Tensor.tolist and isinstance(args[0], Held):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


@contextlib.contextmanager
def simulated() -> Iterator[Waits]:
    """The simulated device is there, and what waits for it is counted."""
    waits = Waits()
    devices = ["cpu", DEVICE.type]
    optimizers = ("optimizer._get_fused_kernels_supported_devices", "adam._get_capturable_supported_devices")
    with (
        mock.patch(f"torch.optim.{optimizers[0]}", return_value=devices),
        mock.patch(f"torch.optim.{optimizers[1]}", return_value=devices),
        _Functions(),
        _Operations(waits),
    ):
        yield waits


def _line() -> str:
    """The innermost line of the project's own code that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        path = checkout_path(frame.f_code.co_filename)
        if path is not None:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "nowhere"
