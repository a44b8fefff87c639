"""Networks as pure functions whose parameters may carry a client dimension.

Any ``torch.nn.Module`` will do whose buffers are constants, and one with batch norm. With shared weights it is called
as it is; with one set for each client linear layers are batched matrix products, and others go through ``torch.func``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn

from ..errors import UserError, unknown
from .chain import Chain
from .layers.batch_norm import NORMS, STATISTICS, Moments, Norms, client_norm, is_statistic, layer_values, remember
from .layers.by_example import by_example
from .layers.dropout import dropped
from .layers.norm_of_modules import norms_of
from .layers.registry import LAYERS
from .precision import networks_output
from .whole_module import WholeModule, check_module

#: numbers (draws x rows x examples x features) of a layer's output that are held at a time where nothing is trained
MAX_NUMBERS_AT_ONCE = 50_000_000
#: name of a layer and its input (..., S, n, features) -> standard normals (S, n, features)
Drop = Callable[[str, Tensor], Tensor]


class Network:
    """A torch module whose parameters are Pyro parameters, called ``NAME.layer.weight`` and so on.

    Called inside a model, it takes its weights from what runs the model. Weights are shared, (*shape), or one set
    per client, (S, 1, *shape); inputs are (S, n, *event), outputs (S, n, features). Dropout (of single numbers, in a
    chain of known layers, after the last picture) acts where the network itself is trained, with masks keyed by client.
    Batch norm does, too: see :class:`Norms`; its running statistics are values beside the weights, shared or each
    client's own.

    A parameter with ``requires_grad=False`` is a constant: it keeps its value, and is neither trained nor sent.

    Args:
        module: the network; its buffers, but batch norm's, are constants too.
        name: the name of the whole group of parameters.
        event: how many dimensions an input has, where draws of it may come (K, S, n, *event).
        weights: what a fit begins with: the "given" values of ``module``, or others, "drawn" by torch's own
            initialisation with the fit's seed; or the module's names of those that are kept, where the rest is drawn.

    Raises:
        UserError: for batch norm or dropout elsewhere, and parameters without values.
    """

    def __init__(
        self, module: nn.Module, name: str = "base", event: int | None = None,
        weights: Literal["given", "drawn"] | Collection[str] = "given",
    ) -> None:  # fmt: skip
        check_module(name, module)
        self.module, self.name, self.event = copy.deepcopy(module), name, event
        frozen = {key: p for key, p in self.module.named_parameters() if not p.requires_grad}
        #: its layers, one after the other; None for a module that is no chain of known ones
        self.chain = None if frozen else Chain.from_module(self.module)
        self._norms = dict(self.chain.norms()) if self.chain else norms_of(self.module)
        statistics = {f"{prefix}{s}" for prefix in self._norms for s in STATISTICS}
        #: the module as one function, with what is constant in it
        norms = {} if self.chain else norms_of(self.module)
        self.whole = WholeModule.from_module(name, self.module, frozen, statistics, norms)
        trained = {key: p for key, p in self.module.named_parameters() if p.requires_grad}
        values = {**trained, **{key: b for key, b in self.module.named_buffers() if key in statistics}}
        self.names = tuple(f"{name}.{key}" for key in values)
        #: those on which its output depends
        self.output_names = self.names
        #: weights by the module's names, batch norm's running statistics left out
        self.shapes = {key: p.shape for key, p in values.items() if not is_statistic(key)}
        self._dims = {key: p.dim() for key, p in values.items()}
        words = {"given": frozenset(values), "drawn": frozenset[str]()}
        if isinstance(weights, str) and weights not in words:
            raise unknown("value of weights", weights, words)
        #: the module's names of values that a fit begins with as they are
        self.given: frozenset[str] = words[weights] if isinstance(weights, str) else frozenset(weights)
        normed = [key.removesuffix(STATISTICS[0]) for key in statistics if key.endswith(STATISTICS[0])]
        #: which of its values belong to batch norm
        self.norm_names = tuple(f"{name}.{key}" for key in values for prefix in normed if key.startswith(prefix))
        #: whether it normalises by its batches: where it is trained, or wherever anything is
        self.norm: Literal["trained", "training"] = "trained"
        #: how many of the chain's layers are run client by client on a CPU
        self._loop = self.chain.looped if self.chain else 0
        drops = self.whole.dropout()
        #: whether it has dropout
        self.drops = bool(drops)
        flat = [layer for _, layer in (self.chain.layers if self.chain else ())[self._loop :]]
        if any(not any(part is layer for layer in flat) for part in drops):
            raise UserError(
                f"network {name!r} has dropout whose masks would not be keyed by client: p=0 leaves it out; it can be "
                "in a flat nn.Sequential of known layers, after the last picture"
            )

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        """What a fit begins with, {name: (*shape)}; leaves the global generator alone.

        Args:
            rng: for the weights that are drawn.
        """
        if not self._dims:
            return {}
        kept = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
            module = copy.deepcopy(self.module)
            for part in module.modules() if self.given < self._dims.keys() else ():
                reset = getattr(part, "reset_parameters", None)
                if reset is not None:
                    reset()
            drawn = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {
            f"{self.name}.{k}": (kept if k in self.given else drawn)[k].detach().clone() for k in self._dims
        }  # fmt: skip

    def broadcast(self, norm: Literal["batch", "running"] = "running") -> Network:
        """The same network as the server sent it, whatever a client has made of its copy since.

        Args:
            norm: its batch norm goes by the batches that the client is trained on, or by its running statistics.
        """
        sent = copy.copy(self)
        sent.name, sent.names = f"{BROADCAST_PREFIX}{self.name}", tuple(f"{BROADCAST_PREFIX}{k}" for k in self.names)
        sent.output_names = tuple(f"{BROADCAST_PREFIX}{k}" for k in self.output_names)
        sent.norm = "training" if norm == "batch" else "trained"
        return sent

    @property
    def layers(self) -> list[list[str]]:
        """The names of its values, layer by layer; batch norm belongs to the layer before it."""
        by_layer: dict[str, list[str]] = {}
        for name in self.names:
            layer = name.rpartition(".")[0]
            if name in self.norm_names and layer not in by_layer and by_layer:
                layer = next(reversed(by_layer))
            by_layer.setdefault(layer, []).append(name)
        return [*by_layer.values()]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all values, by the module's names."""
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
        return networks_output(lambda: self._whole(weights, x, drop, norms), x.device)

    def _whole(self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None, norms: Norms | None) -> Tensor:
        if any(w.dim() == self._dims[k] + 3 for k, w in weights.items()):
            return self._drawn(weights, x, drop, norms)
        mask, trained = None, norms is not None and not norms.moving.isdisjoint(self.names)
        batchwise = bool(self.norm_names) and norms is not None and (trained or self.norm == "training")
        if batchwise and norms is not None:
            mask = norms.mask
        if self.event is not None and x.dim() == self.event + 3:  # draws are more examples of the same client
            draws = x.shape[0]
            mask = None if mask is None else mask.repeat_interleave(draws, 1)  # padding stays on the right
            y = self._apply(weights, x.movedim(0, 2).flatten(1, 2), drop, batchwise, mask, norms if trained else None)
            return y.unflatten(1, (-1, draws)).movedim(2, 0)
        return self._apply(weights, x, drop, batchwise, mask, norms if trained else None)

    def _drawn(self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None, norms: Norms | None) -> Tensor:
        """Draws of the weights, (K, S, 1, *shape) among them, are more rows: (K, S, n, features).

        Batch norm goes by its running statistics, which are no draws.

        Args:
            weights, x, drop, norms: as for :meth:`apply`; x (S, n, *event).
        """
        if self.norm_names and norms is not None:
            raise UserError(
                f"network {self.name!r} has batch norm: its weights are not drawn while anything is trained"
            )
        draws = next(w.shape[0] for k, w in weights.items() if w.dim() == self._dims[k] + 3)
        draws_at_once = draws
        if not torch.is_grad_enabled():  # a gradient would hold them all whatever is done
            widest = max((max(shape) for shape in self.shapes.values() if len(shape) == 2), default=1)
            draws_at_once = max(1, MAX_NUMBERS_AT_ONCE // (x.shape[0] * x.shape[1] * max(widest, x[0, 0].numel())))

        def part_of(w: Tensor, key: str, first: int) -> Tensor:
            return w[first : first + draws_at_once] if w.dim() == self._dims[key] + 3 and len(w) > 1 else w

        parts = [{k: part_of(w, k, first) for k, w in weights.items()} for first in range(0, draws, draws_at_once)]
        counts = [min(draws_at_once, draws - first) for first in range(0, draws, draws_at_once)]
        outputs = [self._together(part, x, drop, count) for part, count in zip(parts, counts, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _together(self, weights: Mapping[str, Tensor], x: Tensor, drop: Drop | None, draws: int) -> Tensor:
        """So many draws of the weights at a time."""
        rows = x.shape[0]

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
        chain, moments_seen = self.chain, dict[str, list[Moments]]()
        if chain is not None:
            looped = self._loop if x.device.type == "cpu" else 0
            if looped and (batchwise or any(w.dim() > self._dims[k] for k, w in weights.items())):
                done = []
                for j, (own, xs) in enumerate(zip(self._by_client(weights, len(x)), x.unbind(), strict=True)):
                    present = len(xs) if mask is None else int(mask[j].sum())
                    done.append(chain.alone(own, xs, looped, *((present, moments_seen) if batchwise else ())))
                x = torch.stack(done)
            elif looped:
                x = by_example(lambda xs: chain.alone(weights, xs, looped), x)
            for prefix, layer in chain.layers[looped:]:
                if isinstance(layer, nn.Dropout):
                    x = x if drop is None else dropped(x, layer.p, drop(f"{self.name}/{prefix}drop", x))
                    continue
                own = layer_values(prefix, weights)
                if isinstance(layer, NORMS) and batchwise:
                    x, moments = client_norm(x, own, layer.eps, mask)
                    moments_seen[prefix] = [moments]
                else:
                    x = LAYERS[type(layer)].apply(layer, own, x)
        elif batchwise:
            x = self.whole.by_batch(self._by_client(weights, len(x)), x, mask, moments_seen)
        if learning is not None:
            remember(self._norms, self.name, weights, moments_seen, learning)
        if chain is not None or batchwise:
            return x
        if all(w.dim() == self._dims[k] for k, w in weights.items()):
            return by_example(lambda xs: self.whole(weights, xs), x)
        if x.device.type == "cpu":  # a loop over clients beats what vmap makes of convolutions
            rows = zip(self._by_client(weights, len(x)), x.unbind(), strict=True)
            return torch.stack([self.whole(own, xs) for own, xs in rows])
        squeezed = {k: w.squeeze(1) if w.dim() > self._dims[k] else w for k, w in weights.items()}
        dims = {k: 0 if w.dim() > self._dims[k] else None for k, w in weights.items()}
        return torch.vmap(self.whole, in_dims=(dims, 0))(squeezed, x)

    def _by_client(self, weights: Mapping[str, Tensor], rows: int) -> Iterator[dict[str, Tensor]]:
        """Each client's weights.

        They are taken apart all at once: the gradient of a row that is taken by itself has the size of all rows.
        """
        apart = {k: w.squeeze(1).unbind() if w.dim() > self._dims[k] else (w,) * rows for k, w in weights.items()}
        return ({k: values[j] for k, values in apart.items()} for j in range(rows))


#: before the names of values as they were broadcast
BROADCAST_PREFIX = "broadcast."


@effectful(type="network")
def _network(network: Network, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Default behaviour, outside any restriction: what ``weights`` does not say comes from Pyro's param store."""
    own = weights or {}
    rest = {k: pyro.param(f"{network.name}.{k}") for k in network.keys if k not in own}
    return network.apply({**rest, **own}, x)
