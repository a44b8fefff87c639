"""Low-rank changes of a network's layers that differ between clients, and derivatives by their numbers.

Layer l has W_l, and client j W_l + B_jl A_l with a fixed A_l (rank, in) and its own B_jl (out, rank). What the layer
gives is W_l x + B_jl (A_l x): all clients' examples go through the network together, and no one has a copy of W_l.
To first order an output f is linear in what each layer gives: d f / d B_jl is the sum over positions of an example (the
pixels of a convolution) of d f / d (what the layer gives there) (A_l x)^T. One backward pass for each output of the
network says that for all numbers and all examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import rng
from ..errors import UserError, unknown
from .functional import Network

#: layers that can be changed
CHANGEABLE = (nn.Linear, nn.Conv1d, nn.Conv2d)
#: relative difference between the two ways to compute features that is rounding
ROUNDING = 1e-3


@dataclass(frozen=True)
class LowRankChanges:
    """Which layers of a network are changed, and how.

    Args:
        network: whose layers.
        layers: the module's names of them.
        rank: r.
    """

    network: Network
    layers: tuple[str, ...]
    rank: int

    @classmethod
    def for_network(cls, network: Network, rank: int, names: Sequence[str] = ()) -> LowRankChanges:
        """Returns the changes of all linear layers and convolutions that are trained, or of the named ones and those
        inside.

        Convolutions of several groups, and the projections inside of attention, are not changed.

        Raises:
            UserError: where there is none, for a name that has none, a rank above that of a layer, and a network in
                which an example's features depend on the others.
        """
        module = network.module
        for key, part in module.named_modules():
            if isinstance(part, _BatchNorm) and not part.track_running_stats:
                kind = type(part).__name__
                raise UserError(f"features depend on the batch: {key!r} is {kind} without running statistics")
        inside = {
            id(p) for part in module.modules() if isinstance(part, nn.MultiheadAttention) for p in part.modules()
        }  # fmt: skip
        candidates = [
            key for key, part in module.named_modules()
            if isinstance(part, CHANGEABLE) and id(part) not in inside and getattr(part, "groups", 1) == 1
            and (f"{key}.weight" if key else "weight") in network.shapes
        ]  # fmt: skip
        if not candidates:
            raise UserError("the network below the head has no linear layer and no convolution that is trained")
        for name in names:
            if not any(_within(key, name) for key in candidates):
                raise unknown("layer to adapt", name, candidates)
        layers = tuple(key for key in candidates if not names or any(_within(key, name) for name in names))
        changes = cls(network, layers, rank)
        for key, (out, width) in changes.shapes.items():
            if rank > min(out, width):
                raise UserError(f"rank {rank} is above that of {key or 'the layer'}, a matrix of {out} x {width}")
        return changes

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Each layer's matrix, (out, in); of a convolution in is channels times pixels of its kernel."""
        shapes = {key: self.network.shapes[weight_of(key)] for key in self.layers}
        return {key: (shape[0], shape[1:].numel()) for key, shape in shapes.items()}

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of each layer's B."""
        return [out * self.rank for out, _ in self.shapes.values()]

    @property
    def d(self) -> int:
        """Numbers of all B."""
        return sum(self.sizes)

    def split(self, b: Tensor) -> dict[str, Tensor]:
        """B of each layer, (..., out, r), in (..., d)."""
        parts = zip(self.layers, b.split(self.sizes, -1), strict=True)
        return {key: part.unflatten(-1, (-1, self.rank)) for key, part in parts}

    def matrices(self, seed: int, like: Tensor) -> dict[str, Tensor]:
        """A of each layer, (r, in): entries N(0, 1 / (in r)), a function of the seed and the layer's name.

        Where a layer's inputs have mean square one, B of standard normals changes each of its outputs by variance one.
        """
        at = seed, like.dtype, like.device
        if at not in self._drawn:
            drawn = {
                key: rng.normals(torch.Size((self.rank, width)), "adapters", seed, key, dtype=torch.float64)
                * (width * self.rank) ** -0.5
                for key, (_, width) in self.shapes.items()
            }
            self._drawn[at] = {key: a.to(like) for key, a in drawn.items()}
        return self._drawn[at]

    def weights(self, b: Tensor, seed: int, given: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """W + B A of each layer, {key: (..., *shape)}, for b (..., d).

        Args:
            b: all B.
            seed: of A.
            given: from a weight's name in the network to W, or to the rows' own, (S, 1, *shape).
        """
        weights = {}
        matrices = self.matrices(seed, b)
        for layer, own in self.split(b).items():
            key = weight_of(layer)
            w = given(key)
            weights[key] = w + (own @ matrices[layer]).unflatten(-1, self.network.shapes[key][1:]).to(w)
        return weights

    def apart(self, layers: Tensor) -> Tensor:
        """Repeats a number of each layer, (L,), for each of B's entries, (d,)."""
        return layers.repeat_interleave(torch.tensor(self.sizes, device=layers.device))

    @cached_property
    def module(self) -> nn.Module:
        """A copy of the network's module that is called as one; a chain of known layers as it predicts."""
        module = copy.deepcopy(self.network.module)
        return module.eval() if self.network.chain is not None else module

    @cached_property
    def unchecked(self) -> set[str]:
        """Layers of which it has not been seen yet that :class:`Pass` is what the network gives; emptied by who has."""
        return set(self.layers)

    @cached_property
    def _drawn(self) -> dict[tuple[int, torch.dtype, torch.device], dict[str, Tensor]]:
        return {}


@dataclass(frozen=True)
class Pass:
    """The features of some clients' examples as a function of all B, with W_l the same for all of them.

    Args:
        changes: of which layers.
        weights: all of the network's values by the module's names, (*shape).
        matrices: A of each layer.
    """

    changes: LowRankChanges
    weights: Mapping[str, Tensor]
    matrices: Mapping[str, Tensor]

    @classmethod
    def from_changes(cls, changes: LowRankChanges, values: Mapping[str, Tensor], seed: int, like: Tensor) -> Pass:
        """The pass under shared values by their names in the model; ``like`` gives the precision of A."""
        network = changes.network
        weights = {**network.whole.constants, **network.parameters_from(values)}
        weights = {k: w.to(like) if w.is_floating_point() else w.to(like.device) for k, w in weights.items()}
        return cls(changes, weights, changes.matrices(seed, like))

    def __call__(self, x: Tensor, b: Tensor) -> Tensor:
        """Features (S, n, p) of x (S, n, *event) under B (S, d)."""
        return self._run(x, b, None)

    def jacobian(self, x: Tensor, b: Tensor, outputs: Callable[[Tensor], tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
        """What is made of the features, and derivatives of some outputs (S, n, C) by B: (S, n, C, d), float64.

        Args:
            x, b: as for a call.
            outputs: from features to what is kept, and the outputs.
        """
        by_layer: dict[str, tuple[Tensor, Tensor]] = {}
        with torch.enable_grad():
            kept, f = outputs(self._run(x, b, by_layer))
            moved = [by_layer[layer][0] for layer in self.changes.layers]
            many = f.shape[-1]
            by_output = [
                torch.autograd.grad(f[..., c].sum(), moved, retain_graph=c < many - 1, allow_unused=True)
                for c in range(many)
            ]
        rows, n = x.shape[:2]
        columns = []
        for k, layer in enumerate(self.changes.layers):
            grads = torch.stack([torch.zeros_like(moved[k]) if g[k] is None else g[k] for g in by_output]).double()
            grads = grads.flatten(3) if grads.dim() > 3 else grads[..., None]
            # (C, S n, out, places) times (S n, places, r)
            columns.append((grads @ by_layer[layer][1].double().mT).flatten(2))
        jacobian = torch.cat(columns, -1).unflatten(1, (rows, n)).movedim(0, 2)
        return kept, jacobian

    def _run(self, x: Tensor, b: Tensor, by_layer: dict[str, tuple[Tensor, Tensor]] | None) -> Tensor:
        rows, n = x.shape[:2]
        changes, called = self.changes, list[str]()

        def hook(layer: str, own: Tensor) -> Callable[..., Tensor]:
            a = self.matrices[layer]

            def changed(part: Any, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
                called.append(layer)
                if out.shape[0] != rows * n:
                    raise _no_example_each(layer)
                pictures = not isinstance(part, nn.Linear)
                if pictures:  # (S n, r, *places), as what layers give
                    read = part._conv_forward(args[0], a.view(len(a), *part.weight.shape[1:]), None)
                else:
                    read = (args[0] @ a.mT).movedim(-1, 1)
                by_place = read.flatten(2) if read.dim() > 2 else read[..., None]
                in_rows = by_place.unflatten(0, (rows, n))  # (S, n, r, places)
                if in_rows.shape[-1] == 1:  # One product for each row replaces one for each example.
                    moved = (in_rows.squeeze(-1) @ own.mT)[..., None]
                else:
                    moved = own[:, None] @ in_rows
                moved = moved.flatten(0, 1).reshape(rows * n, -1, *read.shape[2:])  # (S n, out, *places)
                if by_layer is not None:
                    more = torch.zeros_like(moved, requires_grad=True)
                    by_layer[layer] = more, by_place.detach()
                    moved = moved + more
                return out + (moved if pictures else moved.movedim(1, -1))

            return changed

        handles = [
            changes.module.get_submodule(layer).register_forward_hook(hook(layer, own))
            for layer, own in changes.split(b.to(next(iter(self.matrices.values())))).items()
        ]
        try:
            features = torch.func.functional_call(changes.module, dict(self.weights), (x.flatten(0, 1),))
        finally:
            for handle in handles:
                handle.remove()
        for layer in changes.layers:
            if called.count(layer) != 1:
                raise _no_example_each(layer)
        return features.unflatten(0, (rows, n))

    def check(self, x: Tensor) -> None:
        """Compares with copies of the weights, one example for each of two clients of other B.

        Raises:
            UserError: where the two differ: a layer that does not see one example at a time.
        """
        x = x[0, :1].expand(2, *x.shape[1:])[:, :1]
        like = next(iter(self.matrices.values()))
        b = rng.normals(torch.Size((2, self.changes.d)), "check of adapters", dtype=torch.float64).to(like)
        with torch.no_grad():
            expected = []
            for own in b:
                pieces = self.changes.split(own)
                changed = {
                    weight_of(k): self.weights[weight_of(k)]
                    + (pieces[k] @ self.matrices[k]).unflatten(-1, self.weights[weight_of(k)].shape[1:])
                    for k in self.changes.layers
                }
                expected.append(torch.func.functional_call(self.changes.module, {**self.weights, **changed}, (x[0],)))
            batched, other = self(x, b).double(), torch.stack(expected).double()
        if float((batched - other).abs().max()) > ROUNDING * (1 + float(other.abs().max())):
            raise _no_example_each(", ".join(self.changes.layers))


def weight_of(layer: str) -> str:
    """The module's name of a layer's matrix."""
    return f"{layer}.weight" if layer else "weight"


def _within(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _no_example_each(layer: str) -> UserError:
    return UserError(
        f"adapters: {layer!r} is not called once, with one example in each row: name others (adapter_layers)"
    )
