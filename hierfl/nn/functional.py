"""Networks as pure functions whose parameters may carry a client dimension.

Any ``torch.nn.Module`` without buffers will do; batch norm, in a chain of known layers, too. With shared weights it is
called as it is; with one set of weights per client, chains of linear layers are batched matrix products, and everything
else goes through ``torch.func``.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad
from torch.nn.modules.dropout import _DropoutNd

from ..errors import UserError, unknown
from .layers.batch_norm import (  # fmt: skip
    NORMS,
    STATISTICS,
    Moments,
    Norms,
    client_norm,
    is_statistic,
    layer_values,
    running_norm,
    standing_norm,
)
from .layers.linear import by_example, client_convolution, client_linear, convolve
from .likelihoods import Softmax, gaussian

if TYPE_CHECKING:
    from ..data.federation import Federation


#: name of a layer and its input (..., S, n, features) -> standard normals (S, n, features)
Drop = Callable[[str, Tensor], Tensor]


class Network:
    """A torch module whose parameters are Pyro parameters, called ``NAME.layer.weight`` and so on.

    Called inside a model, it takes its weights from whoever runs the model. Weights are shared, (*shape), or one set
    per client, (S, 1, *shape); inputs are (S, n, *event), outputs (S, n, features). Dropout (of single numbers, in a
    chain of known layers, after the last picture) acts where the network itself is trained, with masks keyed by client.
    Batch norm (in a chain of known layers) does, too: see :class:`Norms`; its running statistics are values beside the
    weights, shared or each client's own.

    Args:
        module: the network; it must have no buffers but batch norm's.
        name: the name of the whole group of parameters.
        event: how many dimensions an input has, where draws of it may come (K, S, n, *event).

    Raises:
        UserError: for a module with other buffers, or batch norm or dropout elsewhere.
    """

    def __init__(self, module: nn.Module, name: str = "base", event: int | None = None) -> None:
        self.module, self.name, self.event = copy.deepcopy(module).requires_grad_(False), name, event
        self._chain = _chain(self.module)
        buffers = {key: b for key, b in module.named_buffers() if not key.endswith("num_batches_tracked")}
        known = {f"{prefix}{s}" for prefix, layer in self._chain or [] if type(layer) in NORMS for s in STATISTICS}
        if buffers.keys() - known:
            raise UserError(
                f"network {name!r} has buffers, which a pure function cannot keep; batch norm's it can, in an "
                "nn.Sequential of known layers, with running statistics and a momentum"
            )
        values = {**dict(module.named_parameters()), **buffers}
        self.names = tuple(f"{name}.{key}" for key in values)
        #: weights by the module's names, batch norm's running statistics left out
        self.shapes = {key: p.shape for key, p in values.items() if not is_statistic(key)}
        self._dims = {key: p.dim() for key, p in values.items()}
        #: which of its values belong to batch norm
        self.norm_names = tuple(
            f"{name}.{key}" for key in values
            for prefix, layer in self._chain or [] if type(layer) in NORMS and key.startswith(prefix)
        )  # fmt: skip
        #: whether it normalises by its batches: where it is trained, or wherever anything is
        self.norm: Literal["trained", "training"] = "trained"
        #: how many of the chain's layers are run client by client on a CPU: up to the last one that sees a picture
        pictures = [k for k, (_, layer) in enumerate(self._chain or [], 1) if isinstance(layer, (nn.Conv2d, *POOLING))]
        self._loop = max(pictures, default=0)
        drops = [part for part in self.module.modules() if isinstance(part, _DropoutNd)]
        #: whether it has dropout
        self.drops = bool(drops)
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
            values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            return {f"{self.name}.{k}": values[k].detach().clone() for k in self._dims}

    def broadcast(self, norm: Literal["batch", "running"] = "running") -> Network:
        """The same network as the server sent it, whatever a client has made of its copy since.

        Args:
            norm: its batch norm goes by the batches that the client is trained on, or by its running statistics.
        """
        sent = copy.copy(self)
        sent.name, sent.names = f"{BROADCAST}{self.name}", tuple(f"{BROADCAST}{k}" for k in self.names)
        sent.norm = "training" if norm == "batch" else "trained"
        return sent

    @property
    def layers(self) -> list[list[str]]:
        """The names of its values, layer by layer; batch norm belongs to the layer before it."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            layer = name.rpartition(".")[0]
            if name in self.norm_names and layer not in found and found:
                layer = next(reversed(found))
            found.setdefault(layer, []).append(name)
        return [*found.values()]

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all values, by the module's names."""
        return tuple(self._dims)

    def __call__(self, x: Tensor) -> Tensor:
        """Features of ``x`` under the weights that the surrounding handler (or the param store) holds."""
        return _network(self, x, name=self.name)

    def under(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Features of ``x`` under these weights, {key: (*shape), (S, 1, *shape) or draws (K, S, 1, *shape)}.

        What they do not name (batch norm's running statistics) comes from the surrounding handler.
        """
        return _network(self, x, weights, name=self.name)

    def parameters_from(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network's own weights out of all ``values``, by the module's names."""
        return {name.removeprefix(self.name + "."): values[name] for name in self.names}

    def apply(
        self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None = None, norms: Norms | None = None
    ) -> Tensor:
        """The pure function: weights {key: (*shape) or (S, 1, *shape)}, x (S, n, *event) -> (S, n, features).

        Args:
            weights: by the module's names.
            x: inputs; draws of them, (K, S, n, *event), where the network knows how many dimensions an event has.
            drop: standard normals for dropout; None for the network as it predicts.
            norms: how batch norm normalises; None for by its running statistics.
        """
        if any(w.dim() == self._dims[k] + 3 for k, w in weights.items()):
            return self._drawn(weights, x, drop, norms)
        mask, trained = None, norms is not None and not norms.moving.isdisjoint(self.names)
        batchwise = bool(self.norm_names) and norms is not None and (trained or self.norm == "training")
        if batchwise and norms is not None:
            mask = norms.mask
        if self.event is not None and x.dim() == self.event + 3:  # draws are more examples of the same client
            draws = x.shape[0]
            mask = None if mask is None else mask.repeat_interleave(draws, 1)  # (padding stays on the right)
            y = self._apply(weights, x.movedim(0, 2).flatten(1, 2), drop, batchwise, mask, norms if trained else None)
            return y.unflatten(1, (-1, draws)).movedim(2, 0)
        return self._apply(weights, x, drop, batchwise, mask, norms if trained else None)

    def _drawn(self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None, norms: Norms | None) -> Tensor:
        """Draws of the weights, (K, S, 1, *shape) among them, are more rows: (K, S, n, features).

        Args:
            weights, x, drop, norms: as for :meth:`apply`; x (S, n, *event).
        """
        if self.norm_names:
            raise UserError(f"network {self.name!r} has batch norm, and its weights cannot be drawn")
        rows = x.shape[0]
        draws = next(w.shape[0] for k, w in weights.items() if w.dim() == self._dims[k] + 3)

        def folded(key: str, w: Tensor) -> Tensor:
            if w.dim() == self._dims[key] + 3:
                return w.expand(draws, rows, *w.shape[2:]).flatten(0, 1)
            return again(w) if w.dim() > self._dims[key] else w

        def again(z: Tensor) -> Tensor:
            return z.expand(draws, *z.shape).flatten(0, 1)

        def dropped(name: str, z: Tensor) -> Tensor:
            assert drop is not None
            return again(drop(name, z[:rows]))  # one mask for all draws

        own = {k: folded(k, w) for k, w in weights.items()}
        y = self._apply(own, again(x), None if drop is None else dropped, False, None, None)
        return y.unflatten(0, (draws, rows))

    def _apply(
        self,
        weights: Mapping[str, Tensor],
        x: Tensor,
        drop: Drop | None,
        batchwise: bool,
        mask: Tensor | None,
        learning: Norms | None,
    ) -> Tensor:
        if self._chain is not None:
            looped = self._loop if x.device.type == "cpu" else 0
            seen: dict[str, list[Moments]] = {}
            if looped and (batchwise or any(w.dim() > self._dims[k] for k, w in weights.items())):
                done = []
                for j in range(x.shape[0]):
                    own = {k: self._own(k, w, j) for k, w in weights.items()}
                    present = len(x[j]) if mask is None else int(mask[j].sum())
                    done.append(self._pictures(own, x[j], looped, *((present, seen) if batchwise else ())))
                x = torch.stack(done)
            elif looped:
                x = by_example(lambda xs: self._pictures(weights, xs, looped), x)
            for prefix, layer in self._chain[looped:]:
                if isinstance(layer, nn.Dropout):
                    x = x if drop is None else _dropped(x, layer.p, drop(f"{self.name}/{prefix}drop", x))
                    continue
                own = layer_values(prefix, weights)
                if isinstance(layer, NORMS) and batchwise:
                    x, moments = client_norm(x, own, layer, mask)
                    seen[prefix] = [moments]
                else:
                    x = _layer(layer, own, x)
            if learning is not None:
                self._remember(weights, seen, learning)
            return x
        if all(w.dim() == self._dims[k] for k, w in weights.items()):
            return by_example(lambda xs: functional_call(self.module, dict(weights), (xs,)), x)
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

    def _pictures(
        self,
        weights: Mapping[str, Tensor],
        x: Tensor,
        layers: int,
        present: int | None = None,
        seen: dict[str, list[Moments]] | None = None,
    ) -> Tensor:
        """The first layers on a CPU, with one set of weights, (n, *event).

        Measured: all convolutions of one client before those of the next (they stay in cache), with channels last,
        take half as long as one grouped convolution after the other.

        Args:
            weights: of one client.
            x: its examples.
            layers: how many of the chain.
            present, seen: batch norm goes by the batch, of which so many are no padding, and tells its moments; None
                for by its running statistics.
        """
        assert self._chain is not None
        done, n = [], len(x)
        for out in [x[:present]] if present is not None else x.split(PICTURES):
            if out.dim() == 4:
                out = out.contiguous(memory_format=torch.channels_last)
            for prefix, layer in self._chain[:layers]:
                if isinstance(layer, nn.Conv2d):
                    weight, bias = weights[f"{prefix}weight"], weights.get(f"{prefix}bias")
                    out = convolve(out, weight, bias, layer)
                    if out.shape[1] > 1:  # (with a single channel in, torch does not see which layout is meant)
                        out = out.contiguous(memory_format=torch.channels_last)
                elif isinstance(layer, NORMS):
                    own = layer_values(prefix, weights)
                    if seen is None:
                        out = standing_norm(out, own, layer)
                    else:
                        y, moments = client_norm(out[None], own, layer, None)
                        out = y[0]
                        seen.setdefault(prefix, []).append(moments)
                else:
                    out = layer(out)
            done.append(out)
        if present is not None and present < n:  # what comes of padding is masked further on
            return pad(done[0], (0, 0) * (done[0].dim() - 1) + (0, n - present))
        return done[0] if len(done) == 1 else torch.cat(done)

    def _remember(self, weights: Mapping[str, Tensor], seen: Mapping[str, list[Moments]], norms: Norms) -> None:
        """Moves running statistics towards the batch's, as torch does; those of a client with one number stay."""
        assert self._chain is not None
        for prefix, layer in self._chain:
            if prefix not in seen or not isinstance(layer, NORMS):
                continue
            mean, variance, known = (torch.cat(parts) for parts in zip(*seen[prefix], strict=True))
            for what, new in zip(STATISTICS, (mean, variance), strict=True):
                old = weights[f"{prefix}{what}"].detach()
                old = old.squeeze(1) if old.dim() > 1 else old.expand_as(new)
                moved = torch.lerp(old, new, layer.momentum or 0.0)
                norms.running[f"{self.name}.{prefix}{what}"] = torch.where(known[:, None], moved, old)


#: pictures that go through a chain's convolutions together on a CPU
PICTURES = 128
#: before the names of values as they were broadcast
BROADCAST = "broadcast."


POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.Identity)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def _chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """(prefix of its parameters, layer), one after the other, where all layers are known here; None otherwise."""
    parts = [(f"{key}.", layer) for key, layer in module._modules.items() if layer is not None]
    layers = parts if type(module) is nn.Sequential else [("", module)]
    with_weights = [layer for _, layer in layers if any(True for _ in layer.parameters())]
    used_twice = len(set(map(id, with_weights))) < len(with_weights)
    pictures = [isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, *POOLING)) for _, layer in layers]
    flat = [type(layer) in (nn.Linear, nn.Flatten) for _, layer in layers]
    back = any(flat[k] and any(pictures[k:]) for k in range(len(layers)))  # a picture again after it was flat
    if used_twice or back or not all(_known(layer) for _, layer in layers):
        return None
    # the maximum of ReLUs is the ReLU of the maximum, and that is four times fewer of them
    for k in range(len(layers) - 1):
        if _rises(layers[k][1]) and type(layers[k + 1][1]) is nn.MaxPool2d:
            layers[k], layers[k + 1] = layers[k + 1], layers[k]
    return layers


def _rises(layer: nn.Module) -> bool:
    """Whether a layer is a function of single numbers that never falls."""
    return type(layer) is nn.ReLU or (type(layer) is nn.LeakyReLU and layer.negative_slope >= 0)


def _known(layer: nn.Module) -> bool:
    """Whether a layer is of a kind that is batched here (a subclass may do something else)."""
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Unflatten:
        return layer.dim == 1
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d):
        return bool(layer.track_running_stats) and layer.momentum is not None
    return type(layer) in (nn.Linear, nn.Dropout, *POINTWISE, *POOLING)


def _dropped(x: Tensor, p: float, normals: Tensor) -> Tensor:
    """Each number set to zero with probability p, the others divided by 1 - p."""
    if not 0 < p < 1:
        return x if p == 0 else torch.zeros_like(x)
    return torch.where(torch.special.ndtr(normals) < p, 0.0, x / (1 - p))


def _layer(layer: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One layer of a chain, its values shared or one set per client; x (S, n, *event)."""
    weight, bias = own.get("weight"), own.get("bias")
    if isinstance(layer, NORMS):
        return running_norm(x, own, layer)
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
    return by_example(layer, x)


@effectful(type="network")
def _network(network: Network, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Default behaviour, outside any restriction: what ``weights`` does not say comes from Pyro's param store."""
    own = weights or {}
    rest = {k: pyro.param(f"{network.name}.{k}") for k in network.keys if k not in own}
    return network.apply({**rest, **own}, x)


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
        encoder: an input's mean and log variance of latent features, (S, n, 2 M), where the base network reads those;
            None where it reads inputs.
        latents: M, how many those are.
    """

    base: Network
    head: LinearHead
    noise: float | None = None
    spec: str = "custom"
    encoder: Network | None = None
    latents: int = 0

    @property
    def networks(self) -> tuple[Network, ...]:
        """All that have weights."""
        return (self.base,) if self.encoder is None else (self.encoder, self.base)

    def norms(self, which: Literal["nothing", "statistics", "all"] = "all") -> frozenset[str]:
        """Names of batch norm's values: its running statistics, or its weights as well.

        Raises:
            UserError: where there are none.
        """
        names = [k for net in self.networks for k in net.norm_names if which == "all" or is_statistic(k)]
        if which == "nothing":
            return frozenset()
        if not names:
            raise UserError(f"network {self.spec} has no batch norm; bncnn:16,32:64 (--network) has")
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

    def statistics(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the base network's values that are no weights: batch norm's running statistics."""
        return {k: v for k, v in base.items() if is_statistic(k)}

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) of the whole network under one vector of weights.

        Args:
            w: (d,), rows (S, 1, d) or draws (K, S, 1, d), in the order of :meth:`vector`.
            x: inputs, (S, n, *event).

        Raises:
            UserError: for a network with latent features, which is two.
        """
        if self.encoder is not None:
            raise UserError(f"network {self.spec} has latent features: it is no function of one vector")
        *parts, head = w.split(self._pieces, -1)
        weights = {k: p.unflatten(-1, shape) for (k, shape), p in zip(self.base.shapes.items(), parts, strict=True)}
        return self.head(head, self.base.under(weights, x))

    def likelihood(self, output: Tensor) -> Any:
        """p(y | output): Softmax for classification, Normal for regression."""
        return Softmax(output) if self.noise is None else gaussian(output, self.noise)


NETWORKS = {
    "linear": "no base network: the inputs are the features",
    "mlp:H,H,...": "hidden layers of these widths, ReLU",
    "projection:D": "a matrix to D numbers, and a head without bias: y = z^T phi^T x (FedPop's synthetic data)",
    "cnn:C,C,...:H,H,...": "5x5 convolutions with C channels, each with ReLU and 2x2 max-pool; then hidden layers H",
    "convnet:C,C,...": "3x3 convolutions, ReLU, each but the last with 2x2 max-pool (padding 1); global average pool",
    "bncnn:C,C,...:H,H,...": "5x5 convolutions (padding 2) with C channels, batch norm, ReLU, all but the last with "
    "2x2 max-pool; then hidden layers H with batch norm",
    "NETWORK,dropout=P": "mlp or cnn with dropout after each hidden layer, where the network is trained",
    "NETWORK,leaky=A": "LeakyReLU of slope A instead of ReLU",
    "NETWORK,z-norm": "for latent features: batch norm of their mean and log variance",
}


def architecture(spec: str, federation: Federation, noise: float = 1.0, latent: bool = False) -> Architecture:
    """A network for this federation's inputs and responses.

    With latent features the network is cut at its last convolution, or its last hidden layer where it has none. That
    layer gives twice as many numbers, z's mean and log variance, without its batch norm; what follows it, its ReLU
    first, becomes the base network. (The network without latent features is the limit of no variance.)

    Args:
        spec: one of :data:`NETWORKS`. pFedVEM's are mlp:100 (Fashion-MNIST), cnn:16,32:120,84 (CIFAR-10) and
            convnet:32,64,128,256,100 (CIFAR-100, SUN397); FedPop's mlp:512,256,64 (MNIST), cnn:64,64:120,64 (CIFAR-10)
            and cnn:64,128:256,128,dropout=0.6 (CIFAR-100); pFedV's bncnn:64,64,128:2048,512 (Digit-Five); pFedVMP's
            cnn:32,64:512,leaky=0.1.
        federation: says what goes in and comes out.
        noise: standard deviation of a regression's response.
        latent: with latent features.

    Raises:
        UserError: for a spec that cannot be read or does not suit the inputs, or a noise that is no standard deviation.
    """
    if not 0 < noise < float("inf"):
        raise UserError(f"noise must be a number above zero, not {noise}")
    outputs = federation.classes if federation.task == "classification" else 1
    event, whole = federation.event_shape, spec
    spec = spec.removesuffix(Z_NORM)
    if spec != whole and not latent:
        raise UserError(f"{Z_NORM[1:]} is for methods with latent features (pfedv, fedv); got {whole}")
    encoder, latents = None, 0
    with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
        try:
            module = _module(spec, event)
            features = module.eval()(torch.zeros(1, *event)).shape[-1]
            if latent:
                encoder, module = _cut(module, event, whole)
                latents = encoder.eval()(torch.zeros(1, *event)).shape[-1] // 2
        except RuntimeError as error:
            small = "size" in str(error)  # torch's word for a picture that a convolution does not fit into
            why = f"does not fit inputs {tuple(event)}" if small else "does not fit into memory"
            raise UserError(f"network {spec} {why}") from error
    head = LinearHead(features, outputs, bias=not spec.startswith("projection"))
    noise_or_none = None if federation.classes else noise
    if encoder is None:
        return Architecture(Network(module), head, noise_or_none, spec)
    return Architecture(Network(module, event=1), head, noise_or_none, whole, Network(encoder, "encoder"), latents)


#: the end of a network's name
Z_NORM = ",z-norm"


def _cut(module: nn.Sequential, event: torch.Size, spec: str) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder and the rest of a network; see :func:`architecture`."""
    layers = list(module)
    if any(isinstance(layer, nn.Dropout) for layer in layers):
        raise UserError(f"a network with latent features has noise of its own, and no dropout; got {spec}")
    places = [k for k, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    places = places or [k for k, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    if not places:
        raise UserError(f"network {spec} has no layer that could give latent features; as in mlp:100")
    k = places[-1]
    old, rest = layers[k], layers[k + 1 :]
    normed = bool(rest) and isinstance(rest[0], NORMS)
    rest = rest[1:] if normed else rest
    before: list[nn.Module] = layers[:k]
    last: list[nn.Module] = []
    if isinstance(old, nn.Conv2d):
        shape: tuple[Any, ...] = (old.kernel_size, old.stride, old.padding)
        twice: nn.Module = nn.Conv2d(old.in_channels, 2 * old.out_channels, *shape)
        last = [nn.BatchNorm2d(2 * old.out_channels)] if spec.endswith(Z_NORM) else []
        picture = nn.Sequential(*before, twice).eval()(torch.zeros(1, *event)).shape[1:]
        rest = [nn.Unflatten(1, (picture[0] // 2, *picture[1:])), *rest]
        last += [nn.Flatten()]
    else:
        assert isinstance(old, nn.Linear)
        twice = nn.Linear(old.in_features, 2 * old.out_features)
        last = [nn.BatchNorm1d(2 * old.out_features)] if spec.endswith(Z_NORM) else []
    return nn.Sequential(*before, twice, *last), nn.Sequential(*rest)


def _module(spec: str, event: torch.Size) -> nn.Sequential:
    spec, options = _options(spec)
    drop, slope = options.get("dropout", 0.0), options.get("leaky")

    def relu() -> nn.Module:
        return nn.ReLU() if slope is None else nn.LeakyReLU(slope)

    kind, *parts = spec.split(":")
    expected = {"linear": 0, "projection": 1, "mlp": 1, "cnn": 2, "convnet": 1, "bncnn": 2}
    if kind not in expected:
        raise unknown("network", spec, NETWORKS)
    try:
        widths = [[int(w) for w in part.split(",")] for part in parts]
    except ValueError:
        widths = []
    if len(widths) != expected[kind] or any(w < 1 for ws in widths for w in ws):
        wanted = next(name for name in NETWORKS if name.partition(":")[0] == kind)
        raise UserError(f"network {kind} is written {wanted}, with whole numbers above zero; got {spec}")
    if kind in ("cnn", "convnet", "bncnn") and len(event) != 3:
        raise UserError(f"network {kind} needs images (channels, height, width), and an input is {tuple(event)}")
    layers: list[nn.Module] = []
    if kind == "projection":
        if len(widths[0]) != 1:
            raise UserError(f"network projection takes one width, as in projection:2; got {spec}")
        return nn.Sequential(nn.Flatten(), nn.Linear(event.numel(), widths[0][0], bias=False))
    if kind == "convnet":
        channels = [event[0], *widths[0]]
        for k, (below, above) in enumerate(itertools.pairwise(channels), start=1):
            layers += [nn.Conv2d(below, above, 3, padding=1), relu()]
            layers += [nn.MaxPool2d(2, 2, padding=1)] if k < len(widths[0]) else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if kind == "bncnn":
        channels = [event[0], *widths[0]]
        for k, (below, above) in enumerate(itertools.pairwise(channels), start=1):
            layers += [nn.Conv2d(below, above, 5, padding=2), nn.BatchNorm2d(above), relu()]
            layers += [nn.MaxPool2d(2)] if k < len(widths[0]) else []
    if kind == "cnn":
        for below, above in itertools.pairwise([event[0], *widths[0]]):
            layers += [nn.Conv2d(below, above, 5), relu(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    features = nn.Sequential(*layers).eval()(torch.zeros(1, *event)).shape[-1]
    for below, above in itertools.pairwise([features, *(widths[-1] if widths else [])]):
        norm = [nn.BatchNorm1d(above)] if kind == "bncnn" else []
        layers += [nn.Linear(below, above), *norm, relu(), *([nn.Dropout(drop)] if drop else [])]
    return nn.Sequential(*layers)


#: network options that are numbers between 0 and 1: what they are, and the kinds that have them
RATES = {"dropout": ("a probability", ("mlp", "cnn")), "leaky": ("a slope", ("mlp", "cnn", "convnet", "bncnn"))}


def _options(spec: str) -> tuple[str, dict[str, float]]:
    """A network's name without its options, and those by name."""
    first = min((spec.find(f",{name}=") for name in RATES if f",{name}=" in spec), default=len(spec))
    found: dict[str, float] = {}
    for option in filter(None, spec[first:].split(",")):
        name, _, text = option.partition("=")
        if name not in RATES:
            raise unknown("option of a network", option, (f"{name}=NUMBER" for name in RATES))
        what, kinds = RATES[name]
        if spec.partition(":")[0] not in kinds:
            raise UserError(f"{name} is for {', '.join(kinds)}, not for {spec}")
        if name in found:
            raise UserError(f"{name} is said twice in {spec}")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = -1.0
        if not 0 < found[name] < 1:
            raise UserError(f"{name} is {what} between 0 and 1, as in mlp:100,{name}=0.5; got {spec}")
    return spec[:first], found
