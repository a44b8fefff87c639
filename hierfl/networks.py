"""Networks as pure functions whose parameters may carry a client dimension.

Any ``torch.nn.Module`` without buffers will do. With shared weights it is called as it is; with one set of weights
per client, chains of linear layers are batched matrix products, and everything else goes through ``torch.func``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.modules.dropout import _DropoutNd

from .errors import UserError, unknown
from .likelihoods import Softmax, gaussian

if TYPE_CHECKING:
    from .federation import Federation


class Network:
    """A torch module whose parameters are Pyro parameters, called ``NAME.layer.weight`` and so on.

    Called inside a model, it takes its weights from whoever runs the model. Weights are shared, (*shape), or one set
    per client, (S, 1, *shape); inputs are (S, n, *event), outputs (S, n, features).

    Args:
        module: the network; it must have no buffers.
        name: the name of the whole group of parameters.

    Raises:
        UserError: for a module with buffers (batch statistics would leak between clients) or dropout.
    """

    def __init__(self, module: nn.Module, name: str = "base") -> None:
        if any(True for _ in module.buffers()):
            raise UserError(f"network {name!r} has buffers (batch norm?), which a pure function cannot keep")
        if any(isinstance(part, _DropoutNd) for part in module.modules()):
            raise UserError(f"network {name!r} has dropout, whose masks would not be keyed by client")
        self.module, self.name = copy.deepcopy(module).requires_grad_(False), name
        self.names = tuple(f"{name}.{key}" for key, _ in module.named_parameters())
        self._dims = {key: p.dim() for key, p in module.named_parameters()}
        layers: list[nn.Module] = list(module.children()) if isinstance(module, nn.Sequential) else [module]
        simple = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Flatten, nn.Identity)
        self._chain = all(isinstance(layer, simple) for layer in layers)

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Fresh weights by torch's own initialisation, {name: (*shape)}; leaves the global generator alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
            module = copy.deepcopy(self.module)
            for part in module.modules():
                reset = getattr(part, "reset_parameters", None)
                if reset is not None:
                    reset()
            return {f"{self.name}.{k}": p.detach().clone() for k, p in module.named_parameters()}

    def __call__(self, x: Tensor) -> Tensor:
        """Features of ``x`` under the weights that the surrounding handler (or the param store) holds."""
        return _network(self, x, name=self.name)

    def parameters_from(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network's own weights out of all ``values``, by the module's names."""
        return {name.removeprefix(self.name + "."): values[name] for name in self.names}

    def apply(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The pure function: weights {key: (*shape) or (S, 1, *shape)}, x (S, n, *event) -> (S, n, features)."""
        per_client = any(w.dim() > self._dims[k] for k, w in weights.items())
        if self._chain:
            return self._apply_chain(weights, x)
        if not per_client:
            rows, n = x.shape[:2]
            out = functional_call(self.module, dict(weights), (x.flatten(0, 1),))
            return out.unflatten(0, (rows, n))
        squeezed = {k: w.squeeze(1) if w.dim() > self._dims[k] else w for k, w in weights.items()}
        dims = {k: 0 if w.dim() > self._dims[k] else None for k, w in weights.items()}
        if x.device.type == "cpu":  # on the CPU a loop over clients beats grouped convolutions
            alone = [
                functional_call(self.module, {k: w[j] if dims[k] == 0 else w for k, w in squeezed.items()}, (x[j],))
                for j in range(x.shape[0])
            ]
            return torch.stack(alone)
        return torch.vmap(lambda w, xs: functional_call(self.module, w, (xs,)), in_dims=(dims, 0))(squeezed, x)

    def _apply_chain(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        layers = self.module if isinstance(self.module, nn.Sequential) else [self.module]
        prefix = [f"{i}." for i in range(len(layers))] if isinstance(self.module, nn.Sequential) else [""]
        for key, layer in zip(prefix, layers, strict=True):
            if isinstance(layer, nn.Linear):
                x = client_linear(x, weights[f"{key}weight"], weights.get(f"{key}bias"))
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            else:
                x = layer(x)
        return x


@effectful(type="network")
def _network(network: Network, x: Tensor) -> Tensor:
    """Default behaviour, outside any restriction: weights from Pyro's param store."""
    return network.apply({k.removeprefix(network.name + "."): pyro.param(k) for k in network.names}, x)


def client_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer whose weights are shared or belong to clients, or to particles and clients.

    Args:
        x: (S, n, in), or (K, S, n, in) where an earlier layer was drawn.
        weight: (out, in), (S, 1, out, in) or (K, S, 1, out, in).
        bias: the same without "in", or None.

    Returns:
        (S, n, out), or (K, S, n, out).
    """
    if weight.dim() == 2:
        return linear(x, weight, bias)
    weight = weight.squeeze(-3)
    if weight.dim() == 3:
        if bias is None:
            return x @ weight.mT
        return torch.baddbmm(bias, x.expand(weight.shape[0], *x.shape[1:]), weight.mT)
    if x.dim() > 3 or weight.shape[1] != x.shape[0]:
        y = x @ weight.mT
        return y if bias is None else y + bias
    draws, rows, out, _ = weight.shape
    # one product per client for all particles: x is read once
    product = torch.bmm(x, weight.transpose(0, 1).reshape(rows, draws * out, -1).mT)
    y = product.unflatten(-1, (draws, out)).movedim(2, 0)
    return y if bias is None else y + bias


@dataclass(frozen=True)
class LinearHead:
    """The last layer as a function of one flat vector of d = outputs (features + 1) numbers, weight before bias."""

    features: int
    outputs: int

    @property
    def d(self) -> int:
        """The number of the head's parameters."""
        return self.outputs * (self.features + 1)

    def __call__(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) for w (..., d) and features z (S, n, features)."""
        cut = self.outputs * self.features
        weight = w[..., :cut].unflatten(-1, (self.outputs, self.features))
        return client_linear(z, weight, w[..., cut:])


@dataclass(frozen=True)
class Architecture:
    """What a method builds its model from: a base network, a head, and the likelihood of the head's output.

    Attributes:
        base: features of an input.
        head: the part that differs between clients.
        noise: standard deviation of a regression's response; None for classification.
        spec: the name this was built from.
    """

    base: Network
    head: LinearHead
    noise: float | None = None
    spec: str = "custom"

    def likelihood(self, output: Tensor) -> Any:
        """p(y | output): Softmax for classification, Normal for regression."""
        return Softmax(output) if self.noise is None else gaussian(output, self.noise)


def architecture(spec: str, federation: Federation, noise: float = 1.0) -> Architecture:
    """A network for this federation's inputs and responses.

    Args:
        spec: "linear" (no base network: the inputs are the features), or "mlp:H" or "mlp:H,H,...": hidden widths.
        federation: says what goes in and comes out.
        noise: standard deviation of a regression's response.

    Raises:
        UserError: for a spec that cannot be read, or a noise that is no standard deviation.
    """
    if not 0 < noise < float("inf"):
        raise UserError(f"noise must be a number above zero, not {noise}")
    outputs = federation.classes if federation.task == "classification" else 1
    inputs = federation.event_shape.numel()
    kind, _, text = spec.partition(":")
    layers: list[nn.Module] = [nn.Flatten()]
    features = inputs
    if kind == "mlp":
        try:
            widths = [int(w) for w in text.split(",")]
        except ValueError:
            widths = [0]
        if min(widths) < 1:
            raise UserError(f"network mlp needs widths above zero, as in mlp:100 or mlp:64,64; got {text or 'none'!r}")
        with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
            for width in widths:
                try:
                    layers += [nn.Linear(features, width), nn.ReLU()]
                except RuntimeError as error:
                    raise UserError(f"network {spec} does not fit into memory") from error
                features = width
    elif spec != "linear":
        raise unknown("network", spec, ["linear", "mlp:H", "mlp:H,H,..."])
    module = nn.Sequential(*layers)
    return Architecture(Network(module), LinearHead(features, outputs), None if federation.classes else noise, spec)
