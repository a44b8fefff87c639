"""What a method builds its model from: a base network, a head and a likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyro
import torch
from torch import Tensor

from ..errors import UserError
from .adapters import LowRankHead
from .functional import Network
from .head import LinearHead
from .layers.batch_norm import is_statistic
from .likelihoods import RESPONSE_SD, Learned, Softmax, gaussian


def check_architecture(method: str, network: object, adapters: bool = False) -> None:
    """Refuses what a method cannot be made with.

    Args:
        method: its name.
        network: that it is to be made with.
        adapters: whether the method takes a head with adapters.

    Raises:
        UserError: for another object than an architecture, and for adapters that the method does not take.
    """
    if not isinstance(network, Architecture):
        raise UserError(
            f"{method} is made with an architecture: architecture('mlp:100', federation), or "
            f"Architecture(Network(module), LinearHead(features, outputs)), not {_kind(network)}"
        )
    if isinstance(network.head, LowRankHead) and not adapters:
        raise UserError(f"{method} reads its head as one layer, and takes no adapters: head=linear")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


@dataclass(frozen=True)
class Architecture:
    """What a method builds its model from: a base network, a head, and the likelihood of the head's output.

    Attributes:
        base: features of an input.
        head: the part that differs between clients.
        noise: standard deviation of a regression's response in the user's units; "shared" or "clients" learns one for
            all clients or one for each, of standardised responses; None for classification.
        spec: the name this was built from.
        encoder: an input's mean and log variance of latent features, (S, n, 2 M), where the base network reads those;
            None where it reads inputs.
        latents: M, how many those are.
        recipe: of what it can be made again, but for its weights (:mod:`.networks.recipe`); None of own modules.
    """

    base: Network
    head: LinearHead
    noise: Any = None
    spec: str = "custom"
    encoder: Network | None = None
    latents: int = 0
    recipe: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value, kind, way in (
            ("base", self.base, Network, "Network(module)"),
            ("head", self.head, LinearHead, "LinearHead(features, outputs)"),
        ):
            if not isinstance(value, kind):
                raise UserError(f"an architecture's {name} is {way}, not {_kind(value)}")

    @property
    def networks(self) -> tuple[Network, ...]:
        """All that have weights."""
        return (self.base,) if self.encoder is None else (self.encoder, self.base)

    @property
    def last_network(self) -> Network:
        """The one that gives what the last layer reads."""
        return self.head.rest if isinstance(self.head, LowRankHead) else self.base

    def norms(self, which: Literal["nothing", "statistics", "all"] = "all") -> frozenset[str]:
        """Names of batch norm's values: its running statistics, or its weights as well.

        Raises:
            UserError: where there are none.
        """
        names = [k for net in self.networks for k in net.norm_names if which == "all" or is_statistic(k)]
        if which == "nothing":
            return frozenset()
        if not names:
            raise UserError(f"network {self.spec} has no batch norm; bncnn:16,32:64 has")
        return frozenset(names)

    # -- the whole network as a function of one vector ---------------------------------------------------------------

    @property
    def d(self) -> int:
        """How many weights there are in all, batch norm's running statistics left out."""
        return sum(self._pieces)

    @property
    def _pieces(self) -> list[int]:
        return [*(shape.numel() for shape in self.base.shapes.values()), self.head.d]

    def vector(self, base: Mapping[str, Tensor], head: Tensor) -> Tensor:
        """All weights as one vector (d,): the base network's, layer by layer, before the head's.

        Args:
            base: its values, {"base.KEY": (*shape)}.
            head: (head.d,).
        """
        weights = self.base.parameters_from(base)
        return torch.cat([*(weights[k].flatten().to(head) for k in self.base.shapes), head])

    def parts(self, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The base network's weights {KEY: (..., *shape)} and the head's (..., head.d) in a vector (..., d)."""
        *parts, head = w.split(self._pieces, -1)
        shapes = self.base.shapes.items()
        return {k: p.unflatten(-1, shape) for (k, shape), p in zip(shapes, parts, strict=True)}, head

    def statistics(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the base network's values that are no weights: batch norm's running statistics."""
        return {k: v for k, v in base.items() if is_statistic(k)}

    def __call__(self, w: Tensor, x: Tensor, head_offset: Tensor | None = None) -> Tensor:
        """Outputs (..., S, n, outputs) of the whole network under one vector of weights.

        Args:
            w: (d,), rows (S, 1, d) or draws (K, S, 1, d), in the order of :meth:`vector`.
            x: inputs, (S, n, *event).
            head_offset: what is added to the head's weights, (head.d,) or (S, 1, head.d). Added to ``w`` it would
                say that a base network under one vector is another one for each client.

        Raises:
            UserError: for a network with latent features, which is two.
        """
        if self.encoder is not None:
            raise UserError(f"network {self.spec} has latent features: it is no function of one vector")
        weights, head = self.parts(w)
        return self.head(head if head_offset is None else head + head_offset, self.base.under(weights, x))

    def likelihood(self, output: Tensor) -> Any:
        """p(y | output): Softmax for classification, Normal for regression."""
        return Softmax(output) if self.noise is None else gaussian(output, self.response_sd)

    @property
    def learned(self) -> Learned | None:
        """Whose the response's learned standard deviation is; None where it is given, and for classification."""
        whose: Learned | None = self.noise if isinstance(self.noise, str) else None  # type: ignore[assignment]
        return whose

    @property
    def response_sd(self) -> float | Tensor:
        """Standard deviation of the response inside a model: as given, or the learned parameter, () or rows (S, 1)."""
        return pyro.param(RESPONSE_SD) if self.learned else self.noise
