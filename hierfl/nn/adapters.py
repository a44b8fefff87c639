"""Low-rank adapters of a network that does not move, as part of a client's head.

Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022. Layer l of a network has the weight matrix
W_l (out x in; of a convolution in is channels x kernel). Client j has

    W_lj = W_l + B_lj A_l        A_l: rank x in, one for all clients        B_lj: out x rank, the client's own
    w_j  = (B_1j, ..., B_Lj, last layer_j)

W_l is constant. A_l begins with entries N(0, 1 / in), so that A_l x is of the scale of x, and B_lj at 0: the start is
the network as it was given. Given A_l the outputs of a layer are linear in B_lj, so a Gaussian w_j ~ N(w, rho^2 I) is a
Gaussian on W_lj, of mean W_l + B_l A_l and covariance rho^2 I (x) A_l^T A_l. With both factors personal, B M^-1 and M A
would be the same layer for any M. Guo et al. (ICLR 2025) share A and keep B; Sun et al. (ICLR 2024) hold A.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyro
import torch
from torch import Tensor, nn

from ..errors import UserError, unknown
from .functional import Network
from .head import LinearHead

#: where the matrices A are among a base network's values
GROUP = "A"
#: layers whose weights may be adapted, and what these are called
ADAPTABLE: dict[type[nn.Module], str] = {
    nn.Linear: "weight", nn.Conv1d: "weight", nn.Conv2d: "weight", nn.MultiheadAttention: "in_proj_weight",
}  # fmt: skip


@dataclass(frozen=True)
class LowRankHead(LinearHead):
    """The layers of a network from the first adapted one on, as a function of B of each and of the last layer.

    Attributes:
        rest: those layers; its values are the weights that are adapted, everything else in it is constant.
        event: shape of what the layers before them give.
        rank: of all adapters.
        name: of the base network, which has the matrices A.
        frozen: the matrices A by that network's names, where they are constant; empty where they are its values.
    """

    rest: Network = field(kw_only=True)
    event: tuple[int, ...] = field(kw_only=True)
    rank: int = field(kw_only=True)
    name: str = field(default="base", kw_only=True)
    frozen: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Shape of B of each adapted weight, by the module's names."""
        return {key: (shape[0], self.rank) for key, shape in self.rest.shapes.items()}

    @cached_property
    def adapters_d(self) -> int:
        """How many numbers all B have."""
        return sum(rows * rank for rows, rank in self.sizes.values())

    @property
    def d(self) -> int:
        """The number of the head's parameters: all B, before the last layer's."""
        return self.adapters_d + super().d

    @property
    def inputs(self) -> int:
        """How many numbers the layers before the adapted ones give."""
        return torch.Size(self.event).numel()

    @property
    def adapter_names(self) -> list[str]:
        """``layer4.0.conv1.weight B[3, 1]``."""
        return [
            f"{key} B[{row}, {column}]"
            for key, (rows, rank) in self.sizes.items() for row in range(rows) for column in range(rank)
        ]  # fmt: skip

    @property
    def matrix_order(self) -> Tensor:
        """Raises an error: outputs are not linear in the numbers of adapters.

        Raises:
            UserError: always; outputs are not linear in these numbers.
        """
        raise UserError(
            "a head with adapters is not linear in its numbers, which curvatures of heads need: head=linear"
        )

    def design(self, z: Tensor) -> Tensor:
        """Raises an error; see :attr:`matrix_order`."""
        raise UserError(
            "a head with adapters is not linear in its numbers, which curvatures of heads need: head=linear"
        )

    def begun(self, head: Tensor) -> Tensor:
        """B = 0, and standard normals for the last layer."""
        return torch.cat([torch.zeros_like(head[: self.adapters_d]), head[self.adapters_d :]])

    def weights(self, w: Tensor, matrices: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """W_l + B_l A_l, {key: (..., *shape)}.

        Args:
            w: (d,), rows (S, 1, d) or draws (K, S, 1, d).
            matrices: A by the base network's names; None for those that are frozen, or the surrounding handler's.
        """
        pieces = w[..., : self.adapters_d].split([rows * rank for rows, rank in self.sizes.values()], -1)
        merged_weights = {}
        for (key, size), piece in zip(self.sizes.items(), pieces, strict=True):
            own, name = self.rest.module.get_parameter(key).detach(), a_name(key)
            base_matrices = self.frozen if matrices is None or name in self.frozen else matrices
            a = base_matrices[name].to(piece) if name in base_matrices else pyro.param(f"{self.name}.{name}")
            change = piece.unflatten(-1, size) @ a
            merged_weights[key] = own.to(change) + change.unflatten(-1, own.shape[1:])
        return merged_weights

    def reads(self, w: Tensor, z: Tensor) -> Tensor:
        """What the last layer reads, (..., S, n, features), under the client's adapters."""
        if w.dim() == 4 and z.dim() == 4:  # draws of both
            if len(w) > 1:
                number = max(len(w), len(z))
                return torch.stack([self.reads(w[k], z[k % len(z)]) for k in range(number)])
            w = w[0]
        return self.rest.under(self.weights(w), z.unflatten(-1, self.event))

    def last(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs of the last layer alone, for w (..., d) and features z (..., S, n, features)."""
        return super().last(w[..., self.adapters_d :], z)


def merged(before: Before, head: LowRankHead, w: Tensor, matrices: Mapping[str, Tensor]) -> nn.Module:
    """A client's whole network below its last layer, as a plain module with W_l + B_l A_l in it.

    Args:
        before: the module of the base network.
        head: with the adapters.
        w: the client's, (d,).
        matrices: A by the base network's names.
    """
    module = copy.deepcopy(before.network).to(w.dtype)
    with torch.no_grad():
        for key, value in head.weights(w, matrices).items():
            module.get_parameter(key).copy_(value)
    return module


def a_name(key: str) -> str:
    """What A of a weight is called among the base network's values, which have no dots in their last part."""
    return f"{GROUP}.{key.replace('.', '_')}"


class Before(nn.Module):
    """The layers before the first adapted one, and the matrices A, which the head reads.

    Args:
        module: the whole network; of what it has, nothing is trained.
        first: so many of its layers come before; 0 for a module that is no Sequential.
        matrices: A of each adapted weight.
    """

    def __init__(self, module: nn.Module, first: int, matrices: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = copy.deepcopy(module).requires_grad_(False)
        self.first = first
        self.A = nn.ParameterDict({key.replace(".", "_"): nn.Parameter(a) for key, a in matrices.items()})

    def forward(self, x: Tensor) -> Tensor:
        """What these layers give, flat."""
        for layer in list(self.network.children())[: self.first]:
            x = layer(x)
        return x.flatten(1)


def adaptable(module: nn.Module, names: Sequence[str] = ()) -> list[str]:
    """The module's names of weights that are adapted.

    Args:
        module: any.
        names: layers, or what contains some; none for all that can be.

    Raises:
        UserError: where there are none, and for a name that has none.
    """
    adaptable = [
        f"{key}.{word}" if key else word
        for key, part in module.named_modules()
        for kind, word in ADAPTABLE.items()
        if isinstance(part, kind) and getattr(part, word, None) is not None
    ]
    layers = sorted({key.rpartition(".")[0] for key in adaptable})
    if not adaptable:
        raise UserError("adapters are of linear layers, convolutions and attention, and the network has none")
    for name in names:
        if not any(_within(key, name) for key in adaptable):
            known = sorted({layer.partition(".")[0] for layer in layers} | set(layers))
            raise unknown("layer to adapt", name, known)
    return [key for key in adaptable if not names or any(_within(key, name) for name in names)]


def _within(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def split(module: nn.Module, keys: Sequence[str]) -> tuple[int, nn.Module]:
    """How many layers come before the first adapted one, and a copy of the module without them.

    Args:
        module: any; of a Sequential layers may come before.
        keys: of the weights that are adapted.
    """
    later = copy.deepcopy(module).requires_grad_(False)
    if type(later) is not nn.Sequential:
        return 0, later
    parts = [*later._modules]
    first = min(parts.index(key.partition(".")[0]) for key in keys)
    for key in parts[:first]:  # the others keep their names
        setattr(later, key, nn.Identity())
    return first, later


def low_rank(
    module: nn.Module, example: Tensor, outputs: int, rank: int, layers: Sequence[str] = (), trained: bool = True,
    draws: bool = False,
) -> tuple[Network, LowRankHead]:  # fmt: skip
    """A base network and a head of a network whose weights do not move.

    Args:
        module: the network without its last layer, with the weights that it keeps.
        example: inputs of the shape and type of a client's, (1, *event).
        outputs: of the last layer.
        rank: of the adapters.
        layers: which are adapted; none for all linear layers, convolutions and attention.
        trained: the matrices A are trained and averaged, as a base network is; else they stay as they are drawn.
        draws: the base network is handed draws of flat inputs.

    Raises:
        UserError: for a rank below 1 or above that of a weight, layers that are not there, and modules that are no
            functions of their weights and input.
    """
    if rank < 1:
        raise UserError(f"an adapter's rank is at least 1, not {rank}")
    keys = adaptable(module, layers)
    first, later = split(module, keys)
    draw, matrices = torch.Generator().manual_seed(0), {}
    for key in keys:
        weight = later.get_parameter(key).requires_grad_(True)
        width = weight[0].numel()
        if rank > min(len(weight), width):
            raise UserError(f"{key} is a matrix of {len(weight)} x {width}: adapters of rank {rank} do not fit")
        matrices[key] = torch.randn((rank, width), generator=draw) * width**-0.5
    before = Before(module, first, matrices)
    before.A.requires_grad_(trained)
    with torch.no_grad():
        inner = example
        for layer in list(module.children())[:first]:
            inner = layer(inner)
        features = later(inner)
    if features.dim() != 2:
        raise UserError(
            f"the network gives {tuple(features.shape[1:])} for one input: end it with nn.Flatten() or a mean"
        )
    event = tuple(inner.shape[1:])
    rest = Network(later, event=len(event))
    rest.whole.check({key: later.get_parameter(key).detach() for key in rest.shapes}, inner)
    base = Network(before, event=1 if draws else None)
    base.output_names = ()  # A is what the head reads
    frozen_weights = {} if trained else {a_name(key): a for key, a in matrices.items()}
    return base, LowRankHead(features.shape[1], outputs, rest=rest, event=event, rank=rank, frozen=frozen_weights)
