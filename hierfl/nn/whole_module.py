"""A module that is no chain of known layers, as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from ..errors import UserError
from .layers.batch_norm import Moments, Norm
from .layers.norm_of_modules import NormOfOne, with_own_norms


def check_module(name: str, module: object) -> None:
    """Refuses what is no module with values.

    Args:
        name: of the network, for messages.
        module: that it is to be made of.

    Raises:
        UserError: for another object, and parameters that have no values or complex ones.
    """
    if not isinstance(module, nn.Module):
        shown = module.__name__ if isinstance(module, type) else repr(module)
        raise UserError(
            f"network {name!r} is made of a torch module, such as nn.Sequential(nn.Linear(4, 8)), not {shown}"
        )
    for key, p in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(p):
            raise UserError(f"parameter {key!r} of network {name!r} has no shape yet: call the module once on an input")
        if p.is_meta:
            raise UserError(f"parameter {key!r} of network {name!r} has no values yet: it is on the device 'meta'")
    for key, p in module.named_parameters():
        if not p.is_floating_point():
            raise UserError(
                f"parameter {key!r} of network {name!r} is {p.dtype}: weights are real floating-point numbers"
            )


@dataclass(frozen=True)
class WholeModule:
    """Calls a module with weights that are handed to it, beside what is constant in it.

    Attributes:
        name: of the network, for messages.
        module: that is called.
        constants: buffers and parameters that are not trained, by the module's names.
        norms: its batch norm, by prefix, whose running statistics are among the weights.
    """

    name: str
    module: nn.Module
    constants: Mapping[str, Tensor]
    norms: Mapping[str, NormOfOne] = field(default_factory=dict)
    _moved: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = field(default_factory=dict)

    @classmethod
    def from_module(
        cls, name: str, module: nn.Module, frozen: Mapping[str, Tensor], own_statistics: Collection[str],
        norms: Mapping[str, Norm],
    ) -> WholeModule:  # fmt: skip
        """Returns the network of a module.

        Args:
            name: of the network.
            module: that is called.
            frozen: its parameters that are constants.
            own_statistics: its buffers that are no constants: running statistics of batch norm.
            norms: batch norm that normalises each client by its own batch.

        Raises:
            UserError: for other running statistics.
        """
        for key, part in module.named_modules():
            own = [f"{key}.{k}" if key else k for k, _ in part.named_buffers(recurse=False)]
            if isinstance(part, _NormBase) and own and not set(own) & set(own_statistics):
                kind = type(part).__name__
                way = "track_running_stats=False makes them unnecessary"
                if kind.startswith("BatchNorm"):
                    way = (
                        "hierfl.nn.batch_norm_free.without_batch_norm(module, 'affine') keeps what a pretrained one "
                        "computes, 'group' puts nn.GroupNorm there; with a momentum, trained weights and one place in "
                        "the module, they are averaged, or each client's own with FedBN"
                    )
                raise UserError(f"network {name!r} has buffers of {kind} ({key!r}) that training changes: {way}")
        buffers = {
            k: b
            for k, b in module.named_buffers()
            if k not in own_statistics and not _counts_batches(k, own_statistics)
        }
        called, replaced = with_own_norms(module, norms) if norms else (module, {})
        return cls(name, called, {**{k: p.detach() for k, p in frozen.items()}, **buffers}, replaced)

    def dropout(self) -> list[nn.Module]:
        """Its layers of dropout, those of probability 0 left out.

        Raises:
            UserError: for dropout inside of attention and recurrent layers.
        """
        for key, part in self.module.named_modules():
            if isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0:
                raise UserError(
                    f"network {self.name!r} has dropout inside {type(part).__name__} ({key!r}), whose masks would not "
                    "be keyed by client: make it with dropout=0.0"
                )
        return [part for part in self.module.modules() if isinstance(part, _DropoutNd) and part.p > 0]

    def __call__(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Computes the output under one set of weights, {key: (*shape)}, for x (n, *event)."""
        return functional_call(self.module, {**self._beside(weights, x), **weights}, (x,))

    def by_batch(
        self, rows: Iterable[Mapping[str, Tensor]], x: Tensor, mask: Tensor | None,
        moments_seen: dict[str, list[Moments]],
    ) -> Tensor:  # fmt: skip
        """Computes the output under one set of weights for each client: batch norm goes by its batch, padding left out.

        Args:
            rows: each client's weights, {key: (*shape)}.
            x: inputs, (S, n, *event).
            mask: (S, n), False for padding, which is on the right.
            moments_seen: what batch norm sees of each client is added here, by prefix.

        Raises:
            UserError: where batch norm is not called exactly once.
        """
        done = []
        for j, (weights, xs) in enumerate(zip(rows, x.unbind(), strict=True)):
            present = len(xs) if mask is None else int(mask[j].sum())
            for norm in self.norms.values():
                norm.seen = []
            try:  # of padding alone nothing is learned, see below
                y = self(weights, xs[:present] if present else xs)
                recorded = {prefix: norm.seen or [] for prefix, norm in self.norms.items()}
            finally:
                for norm in self.norms.values():
                    norm.seen = None
            for prefix, moments in recorded.items():
                if len(moments) != 1:
                    raise UserError(
                        f"network {self.name!r} calls its batch norm {prefix.removesuffix('.')!r} {len(moments)} times "
                        "a pass: its running statistics are of one"
                    )
                known = moments[0].known if present else torch.zeros_like(moments[0].known)
                moments_seen.setdefault(prefix, []).append(moments[0]._replace(known=known))
            done.append(pad(y, (0, 0) * (y.dim() - 1) + (0, len(xs) - len(y))))
        return torch.stack(done)

    def _beside(self, weights: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """The constants, where and in what the weights are."""
        if not self.constants:
            return {}
        like = next((w for w in (*weights.values(), x) if w.is_floating_point()), torch.zeros(()))
        at = x.device, like.dtype
        if at not in self._moved:
            self._moved[at] = {
                k: v.to(x.device, like.dtype if v.is_floating_point() else v.dtype, copy=True)
                for k, v in self.constants.items()
            }
        return self._moved[at]

    def constants_changed(self) -> None:
        """Says that constants have been written to in place."""
        self._moved.clear()

    def check(self, weights: Mapping[str, Tensor], x: Tensor) -> None:
        """Refuses a module that is no function of its weights and input.

        Args:
            weights: one set, {key: (*shape)}.
            x: inputs, (n, *event).

        Raises:
            UserError: where calling it draws random numbers, or changes a buffer.
        """
        values = {**{k: v.clone() for k, v in self._beside(weights, x).items()}, **weights}
        before = {k: (values[k], values[k]._version) for k in self.constants}
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            drawn = [_generators(x.device)]
            functional_call(self.module, values, (x,))
            drawn.append(_generators(x.device))
        if any(not torch.equal(first, other) for first, other in zip(*drawn, strict=True)):
            raise UserError(
                f"network {self.name!r} draws random numbers where it is called, as dropout does: they would not be "
                "keyed by client. nn.Dropout in a flat nn.Sequential of known layers is"
            )
        # a buffer that is written to counts as changed, with the same numbers too
        changed = [k for k, (v, version) in before.items() if values[k] is not v or v._version != version]
        if changed:
            raise UserError(
                f"network {self.name!r} changes its buffer {changed[0]!r} where it is called, which a pure function "
                "cannot keep: call module.eval() first if that stops it, or make it a parameter"
            )


def _counts_batches(key: str, statistics: Collection[str]) -> bool:
    """Whether a buffer counts the batches that batch norm in a chain has seen, which nothing needs."""
    return (
        key.endswith("num_batches_tracked") and f"{key.removesuffix('num_batches_tracked')}running_mean" in statistics
    )


def _generators(device: torch.device) -> list[Tensor]:
    """States of the generators that a module may draw from."""
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]
