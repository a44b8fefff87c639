"""Networks as pure functions whose parameters may carry a client dimension.

Any ``torch.nn.Module`` without buffers will do. With shared weights it is called as it is; with one set of weights
per client, chains of linear layers are batched matrix products, and everything else goes through ``torch.func``.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, linear
from torch.nn.modules.dropout import _DropoutNd

from .errors import UserError, unknown
from .likelihoods import Softmax, gaussian

if TYPE_CHECKING:
    from .federation import Federation


#: name of a layer and its input (..., S, n, features) -> standard normals (S, n, features)
Drop = Callable[[str, Tensor], Tensor]


class Network:
    """A torch module whose parameters are Pyro parameters, called ``NAME.layer.weight`` and so on.

    Called inside a model, it takes its weights from whoever runs the model. Weights are shared, (*shape), or one set
    per client, (S, 1, *shape); inputs are (S, n, *event), outputs (S, n, features). Dropout (of single numbers, in a
    chain of known layers, after the last picture) acts where the network itself is trained, with masks keyed by client.

    Args:
        module: the network; it must have no buffers.
        name: the name of the whole group of parameters.

    Raises:
        UserError: for a module with buffers (batch statistics would leak between clients) or dropout elsewhere.
    """

    def __init__(self, module: nn.Module, name: str = "base") -> None:
        if any(True for _ in module.buffers()):
            raise UserError(f"network {name!r} has buffers (batch norm?), which a pure function cannot keep")
        self.module, self.name = copy.deepcopy(module).requires_grad_(False), name
        self.names = tuple(f"{name}.{key}" for key, _ in module.named_parameters())
        self._dims = {key: p.dim() for key, p in module.named_parameters()}
        self._chain = _chain(self.module)
        #: how many of the chain's layers are run client by client on a CPU: up to the last one that sees a picture
        pictures = [k for k, (_, layer) in enumerate(self._chain or [], 1) if isinstance(layer, (nn.Conv2d, *POOLING))]
        self._loop = max(pictures, default=0)
        drops = [part for part in self.module.modules() if isinstance(part, _DropoutNd)]
        flat = [layer for _, layer in (self._chain or [])[self._loop :]]
        if any(not any(part is layer for layer in flat) for part in drops):
            raise UserError(f"network {name!r} has dropout whose masks would not be keyed by client")

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

    def apply(self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None = None) -> Tensor:
        """The pure function: weights {key: (*shape) or (S, 1, *shape)}, x (S, n, *event) -> (S, n, features).

        Args:
            weights: by the module's names.
            x: inputs.
            drop: standard normals for dropout; None for the network as it predicts.
        """
        if self._chain is not None:
            looped = self._loop if x.device.type == "cpu" else 0
            if looped and any(w.dim() > self._dims[k] for k, w in weights.items()):
                own = ({k: self._own(k, w, j) for k, w in weights.items()} for j in range(x.shape[0]))
                x = torch.stack([self._pictures(w, x[j], looped) for j, w in enumerate(own)])
            elif looped:
                x = _by_example(lambda xs: self._pictures(weights, xs, looped), x)
            for prefix, layer in self._chain[looped:]:
                if isinstance(layer, nn.Dropout):
                    x = x if drop is None else _dropped(x, layer.p, drop(f"{self.name}/{prefix}drop", x))
                    continue
                x = _layer(layer, weights.get(f"{prefix}weight"), weights.get(f"{prefix}bias"), x)
            return x
        if all(w.dim() == self._dims[k] for k, w in weights.items()):
            return _by_example(lambda xs: functional_call(self.module, dict(weights), (xs,)), x)
        squeezed = {k: w.squeeze(1) if w.dim() > self._dims[k] else w for k, w in weights.items()}
        dims = {k: 0 if w.dim() > self._dims[k] else None for k, w in weights.items()}
        if x.device.type == "cpu":  # a loop over clients beats what vmap makes of convolutions
            alone = [
                functional_call(self.module, {k: w[j] if dims[k] == 0 else w for k, w in squeezed.items()}, (x[j],))
                for j in range(x.shape[0])
            ]
            return torch.stack(alone)
        return torch.vmap(lambda w, xs: functional_call(self.module, w, (xs,)), in_dims=(dims, 0))(squeezed, x)

    def _own(self, key: str, weight: Tensor, row: int) -> Tensor:
        """One client's weight."""
        return weight[row, 0] if weight.dim() > self._dims[key] else weight

    def _pictures(self, weights: Mapping[str, Tensor], x: Tensor, layers: int) -> Tensor:
        """The first layers on a CPU, with one set of weights, (n, *event).

        Measured: all convolutions of one client before those of the next (they stay in cache), with channels last,
        take half as long as one grouped convolution after the other.
        """
        assert self._chain is not None
        done = []
        for out in x.split(PICTURES):
            out = out.contiguous(memory_format=torch.channels_last)
            for prefix, layer in self._chain[:layers]:
                if isinstance(layer, nn.Conv2d):
                    weight, bias = weights[f"{prefix}weight"], weights.get(f"{prefix}bias")
                    out = _convolve(out, weight, bias, layer)
                else:
                    out = layer(out)
            done.append(out)
        return done[0] if len(done) == 1 else torch.cat(done)


#: pictures that go through a chain's convolutions together on a CPU
PICTURES = 128
POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.Identity)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def _chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """(prefix of its parameters, layer), one after the other, where all layers are known here; None otherwise."""
    parts = [(f"{key}.", layer) for key, layer in module._modules.items() if layer is not None]
    layers = parts if type(module) is nn.Sequential else [("", module)]
    with_weights = [layer for _, layer in layers if any(True for _ in layer.parameters())]
    used_twice = len(set(map(id, with_weights))) < len(with_weights)
    pictures = [isinstance(layer, (nn.Conv2d, *POOLING)) for _, layer in layers]
    flat = [type(layer) in (nn.Linear, nn.Flatten) for _, layer in layers]
    back = any(flat[k] and any(pictures[k:]) for k in range(len(layers)))  # a picture again after it was flat
    if used_twice or back or not all(_known(layer) for _, layer in layers):
        return None
    # the maximum of ReLUs is the ReLU of the maximum, and that is four times fewer of them
    for k in range(len(layers) - 1):
        if type(layers[k][1]) is nn.ReLU and type(layers[k + 1][1]) is nn.MaxPool2d:
            layers[k], layers[k + 1] = layers[k + 1], layers[k]
    return layers


def _known(layer: nn.Module) -> bool:
    """Whether a layer is of a kind that is batched here (a subclass may do something else)."""
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in (nn.Linear, nn.Dropout, *POINTWISE, *POOLING)


def _dropped(x: Tensor, p: float, normals: Tensor) -> Tensor:
    """Each number set to zero with probability p, the others divided by 1 - p."""
    if not 0 < p < 1:
        return x if p == 0 else torch.zeros_like(x)
    return torch.where(torch.special.ndtr(normals) < p, 0.0, x / (1 - p))


def _by_example(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies to (S, n, *event) what takes (S n, *event)."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _layer(layer: nn.Module, weight: Tensor | None, bias: Tensor | None, x: Tensor) -> Tensor:
    """One layer of a chain, its parameters shared or one set per client; x (S, n, *event)."""
    if isinstance(layer, nn.Linear):
        assert weight is not None
        return client_linear(x, weight, bias)
    if isinstance(layer, nn.Conv2d):
        assert weight is not None
        return client_convolution(x, weight, bias, layer)
    if isinstance(layer, nn.Flatten):
        return x.flatten(2)
    if isinstance(layer, POINTWISE):
        return layer(x)
    return _by_example(layer, x)


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
        x = x.expand(weight.shape[0], *x.shape[1:])
        return product(x, weight, bias) if bias is None or bias.dim() == 3 else product(x, weight) + bias
    if x.dim() > 3 or weight.shape[1] != x.shape[0]:
        y = x @ weight.mT
        return y if bias is None else y + bias
    # one product per client for all particles, x is read once; examples last, as the likelihood wants them
    draws, rows, out, _ = weight.shape
    every = weight.transpose(0, 1).reshape(rows, draws * out, -1)
    own = None
    if bias is not None and bias.dim() == 4:
        own, bias = bias.transpose(0, 1).reshape(rows, draws * out, 1), None
    y = product(every, x, own).unflatten(1, (draws, out)).permute(1, 0, 3, 2)
    return y if bias is None else y + bias


class _Product(torch.autograd.Function):
    """x @ weight.mT + bias for each client, whose gradient has the weight's own layout.

    Torch's gradient of bmm(x, weight.mT) is the transpose of what is wanted, and is copied into place: for a batch of
    ten that copy is most of the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.shape
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias, x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(gradient.mT, x) if ctx.needs_input_grad[1] else None,
            gradient.sum_to_size(ctx.bias) if ctx.needs_input_grad[2] else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (S, n, in) times the transpose of weight (S, out, in) plus bias (S, 1, out) or (S, n, 1), client by client.

    Returns:
        (S, n, out).
    """
    return _Product.apply(x, weight, bias)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, clients: int = 1) -> Tensor:
    """The layer's convolution with other weights, of several clients side by side."""
    return conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, clients * layer.groups)


def client_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d) -> Tensor:
    """A convolution whose weights are shared or belong to clients.

    Args:
        x: (S, n, channels, height, width).
        weight: (out, in, h, w) or (S, 1, out, in, h, w).
        bias: (out,), (S, 1, out) or None.
        layer: says stride, padding, dilation and groups.

    Returns:
        (S, n, out, height, width).
    """
    if weight.dim() == 4:
        y = _by_example(lambda xs: _convolve(xs, weight, None, layer), x)
    else:
        rows = x.shape[0]
        side_by_side = x.transpose(0, 1).flatten(1, 2)  # (n, S channels, ...): a group of channels for each client
        y = _convolve(side_by_side, weight.flatten(0, 2), None, layer, rows)
        y = y.unflatten(1, (rows, -1)).transpose(0, 1)
    return y if bias is None else y + bias[..., None, None]


@dataclass(frozen=True)
class LinearHead:
    """The last layer as a function of one flat vector of d = outputs (features + 1) numbers, weight before bias.

    Without a bias they are d = outputs features.
    """

    features: int
    outputs: int
    bias: bool = True

    @property
    def d(self) -> int:
        """The number of the head's parameters."""
        return self.outputs * (self.features + self.bias)

    def __call__(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) for w (..., d) and features z (S, n, features)."""
        cut = self.outputs * self.features
        weight = w[..., :cut].unflatten(-1, (self.outputs, self.features))
        return client_linear(z, weight, w[..., cut:] if self.bias else None)


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


NETWORKS = {
    "linear": "no base network: the inputs are the features",
    "mlp:H,H,...": "hidden layers of these widths, ReLU",
    "projection:D": "a matrix to D numbers, and a head without bias: y = z^T phi^T x (FedPop's synthetic data)",
    "cnn:C,C,...:H,H,...": "5x5 convolutions with C channels, each with ReLU and 2x2 max-pool; then hidden layers H",
    "convnet:C,C,...": "3x3 convolutions, ReLU, each but the last with 2x2 max-pool (padding 1); global average pool",
    "NETWORK,dropout=P": "mlp or cnn with dropout after each hidden layer, where the network is trained",
}


def architecture(spec: str, federation: Federation, noise: float = 1.0) -> Architecture:
    """A network for this federation's inputs and responses.

    Args:
        spec: one of :data:`NETWORKS`. pFedVEM's are mlp:100 (Fashion-MNIST), cnn:16,32:120,84 (CIFAR-10) and
            convnet:32,64,128,256,100 (CIFAR-100, SUN397); FedPop's mlp:512,256,64 (MNIST), cnn:64,64:120,64 (CIFAR-10)
            and cnn:64,128:256,128,dropout=0.6 (CIFAR-100).
        federation: says what goes in and comes out.
        noise: standard deviation of a regression's response.

    Raises:
        UserError: for a spec that cannot be read or does not suit the inputs, or a noise that is no standard deviation.
    """
    if not 0 < noise < float("inf"):
        raise UserError(f"noise must be a number above zero, not {noise}")
    outputs = federation.classes if federation.task == "classification" else 1
    event = federation.event_shape
    with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
        try:
            module = _module(spec, event)
            features = module(torch.zeros(1, *event)).shape[-1]
        except RuntimeError as error:
            small = "size" in str(error)  # torch's word for a picture that a convolution does not fit into
            why = f"does not fit inputs {tuple(event)}" if small else "does not fit into memory"
            raise UserError(f"network {spec} {why}") from error
    head = LinearHead(features, outputs, bias=not spec.startswith("projection"))
    return Architecture(Network(module), head, None if federation.classes else noise, spec)


def _module(spec: str, event: torch.Size) -> nn.Sequential:
    whole, (spec, _, rate) = spec, spec.partition(",dropout=")
    drop = _rate(rate, whole) if rate or whole != spec else 0.0
    kind, *parts = spec.split(":")
    expected = {"linear": 0, "projection": 1, "mlp": 1, "cnn": 2, "convnet": 1}
    if kind not in expected:
        raise unknown("network", spec, NETWORKS)
    try:
        widths = [[int(w) for w in part.split(",")] for part in parts]
    except ValueError:
        widths = []
    if len(widths) != expected[kind] or any(w < 1 for ws in widths for w in ws):
        wanted = next(name for name in NETWORKS if name.partition(":")[0] == kind)
        raise UserError(f"network {kind} needs widths above zero, as in {wanted}; got {spec}")
    if kind in ("cnn", "convnet") and len(event) != 3:
        raise UserError(f"network {kind} needs images (channels, height, width), and an input is {tuple(event)}")
    layers: list[nn.Module] = []
    if kind == "projection":
        if len(widths[0]) != 1:
            raise UserError(f"network projection takes one width, as in projection:2; got {spec}")
        return nn.Sequential(nn.Flatten(), nn.Linear(event.numel(), widths[0][0], bias=False))
    if kind == "convnet":
        channels = [event[0], *widths[0]]
        for k, (below, above) in enumerate(itertools.pairwise(channels), start=1):
            layers += [nn.Conv2d(below, above, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2, 2, padding=1)] if k < len(widths[0]) else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if kind == "cnn":
        for below, above in itertools.pairwise([event[0], *widths[0]]):
            layers += [nn.Conv2d(below, above, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    features = nn.Sequential(*layers)(torch.zeros(1, *event)).shape[-1]
    for below, above in itertools.pairwise([features, *(widths[-1] if widths else [])]):
        layers += [nn.Linear(below, above), nn.ReLU(), *([nn.Dropout(drop)] if drop else [])]
    return nn.Sequential(*layers)


def _rate(text: str, spec: str) -> float:
    """A probability of dropout."""
    if not spec.startswith(("mlp", "cnn")):
        raise UserError(f"dropout is for mlp and cnn, not for {spec}")
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 < rate < 1:
        raise UserError(f"dropout is a probability between 0 and 1, as in mlp:100,dropout=0.5; got {spec}")
    return rate
