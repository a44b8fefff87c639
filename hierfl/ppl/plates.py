"""The language of a method file: plates, flat priors, and the restriction of a model to rows of its client plate.

Dimensions, fixed once: particles -3, clients -2, data -1; everything further right is ``.to_event``. A parameter
that belongs to clients comes as rows (S, 1, *event); one that everybody shares has no leading dimension, (*event),
until clients train copies of it or differentiate by it: then it, too, comes as rows. So a scalar that stands beside a
vector (the scale of ``Normal(w, rho).to_event(1)``) has shape (1,), and one that stands beside the data has shape ().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions import ImproperUniform
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.broadcast_messenger import BroadcastMessenger
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.plate_messenger import PlateMessenger
from torch import Tensor
from torch.distributions import constraints

from ..data.federation import Batch
from ..errors import UserError
from ..nn.functional import Drop, Network
from ..nn.layers.batch_norm import Norms
from ..rng import Noise, reparametrise
from .empirical_draws import Draws

CLIENTS, DATA = "clients", "data"

sample = pyro.sample
param = pyro.param
#: weighs the log densities inside: around a latent of the model, and around the same one of the guide
scale = pyro.poutine.scale
#: leaves out the log densities inside where it is False
mask = pyro.poutine.mask


class _Whole(PlateMessenger):
    """A plate all of whose rows are here.

    It need not ask the handlers which rows, nor rescale for those that are not, as pyro.plate does at each entry and
    each site: in a hot loop that is a tenth of a step.
    """

    @staticmethod
    def _subsample(name: str, size: int, without: None, rows: Tensor, *where: Any) -> tuple[int, int, Tensor]:
        return size, size, rows

    def _process_message(self, msg: Any) -> None:
        frame = CondIndepStackFrame(self.name, self.dim, self.size, self.counter, self.size)
        msg["cond_indep_stack"] = (frame, *msg["cond_indep_stack"])
        if msg["type"] == "sample":
            shape = getattr(msg["fn"], "batch_shape", ())
            if len(shape) < -self.dim or shape[self.dim] != self.size:  # as it is, most often
                BroadcastMessenger._pyro_sample(msg)


class _Data(_Whole):
    """The data plate: what poutine.mask and poutine.scale would do inside it, in one handler."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(DATA, batch.width, subsample=batch.column_numbers, dim=-1)
        self.mask, self.scale = batch.mask, batch.scale

    def _process_message(self, msg: Any) -> None:
        if self.mask is not None:
            msg["mask"] = self.mask if msg["mask"] is None else msg["mask"] & self.mask
        if self.scale is not None:
            msg["scale"] = self.scale * msg["scale"]
        super()._process_message(msg)


def clients(batch: Batch) -> PlateMessenger:
    """The plate of clients, with exactly the rows present, so that there is no J/S rescaling to undo."""
    return _Whole(CLIENTS, batch.rows, subsample=batch.row_numbers, dim=-2)


def data(batch: Batch) -> PlateMessenger:
    """The plate of a client's examples: padding masked, a minibatch weighted up to the client's n_j."""
    return _Data(batch)


def flat(*shape: int) -> ImproperUniform:
    """A flat prior over R^d (or arrays of this shape): log density 0 everywhere."""
    return ImproperUniform(constraints.independent(constraints.real, len(shape)), torch.Size(), torch.Size(shape))


Draw = Callable[[str, Any, bool], Tensor]


class Site(NamedTuple):
    """What happened at a sample site."""

    fn: Any  # the distribution, broadcast to its plates
    value: Tensor
    kind: str  # "latent", "fixed" (a value we gave it from outside) or "observed"
    scale: Any
    mask: Any
    per_client: bool  # inside the client plate
    per_example: bool  # inside the data plate
    name: str = ""

    def redrawn(self, noise: Noise) -> dict[str, Site]:
        """The same site of a guide with a fresh draw."""
        return {self.name: self._replace(value=draw_with(noise)(self.name, self.fn, self.per_example))}


class Restrict(Messenger):
    """Runs a model or guide restricted to the rows of a batch, everything else held at given values.

    Parameters, the networks' weights and the latents named in ``values`` are taken from there (a latent keeps its
    log density: it is conditioned on, never hidden). Other latents are replayed from ``latents``, where given there,
    and otherwise drawn by ``draw``. What was seen is left in ``sites``.

    Args:
        values: name -> tensor, shared (*event) or rows (S, 1, *event).
        latents: values for the model's latent sites, as the guide left them.
        draw: name, distribution, whether the site is in the data plate -> value, for sites that have none.
        frozen: a cache for the output of networks none of whose parameters moves, or None.
        drop: standard normals for the networks' dropout; None where they predict.
        norms: how networks' batch norm normalises; None where they predict.

    Example:
        >>> import torch, pyro.distributions as dist
        >>> with Restrict({"w": torch.tensor(2.0)}) as seen:
        ...     w = sample("w", dist.Normal(0.0, 1.0))
        >>> float(w), seen.sites["w"].kind
        (2.0, 'fixed')
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        latents: Mapping[str, Tensor] | None = None,
        draw: Draw | None = None,
        frozen: FrozenFeatures | None = None,
        drop: Drop | None = None,
        norms: Norms | None = None,
    ) -> None:
        super().__init__()
        self.drop, self.norms = drop, norms
        self.values, self.latents, self.draw, self.frozen = values, latents or {}, draw, frozen
        self.sites: dict[str, Site] = {}
        #: parameters that were asked for
        self.asked: set[str] = set()

    def __enter__(self) -> Restrict:
        self.sites, self.asked = {}, set()
        super().__enter__()
        return self

    def _pyro_param(self, msg: dict) -> None:
        name = msg["name"]
        self.asked.add(name)
        if name not in self.values:
            raise UserError(
                f"parameter {name!r} is asked for, but neither shared() nor personal() declares it; "
                f"declared: {', '.join(sorted(self.values))}"
            )
        msg["value"], msg["done"] = self.values[name], True

    def _pyro_network(self, msg: dict) -> None:
        network, x, *given = msg["args"]
        if given:
            weights = dict(given[0])
            rest = [k for k in network.keys if k not in weights]
            self.asked.update(f"{network.name}.{k}" for k in rest)
            weights |= {k: self.values[f"{network.name}.{k}"] for k in rest}
            msg["value"], msg["done"] = network.apply(weights, x, self.drop, self.norms), True
            return
        self.asked.update(network.names)
        if self.frozen is not None and self.frozen.serves(network, x):
            msg["value"] = self.frozen.features(network)
        else:
            msg["value"] = network.apply(network.parameters_from(self.values), x, self.drop, self.norms)
        msg["done"] = True

    def _pyro_sample(self, msg: dict) -> None:
        if msg["is_observed"] or msg["done"] or not isinstance(msg["fn"], TorchDistributionMixin):
            return  # an observation, or a plate announcing its indices
        name = msg["name"]
        if name in self.values:
            msg["value"], msg["is_observed"] = self.values[name], True
            msg["infer"]["fixed"] = True
        elif name in self.latents:
            msg["value"] = self.latents[name]
        elif self.draw is not None:
            in_data = any(frame.name == DATA for frame in msg["cond_indep_stack"])
            msg["value"] = self.draw(name, msg["fn"], in_data)
        else:
            raise UserError(f"latent site {name!r} of the model is not in the guide, and nothing fixes it")

    def _pyro_post_sample(self, msg: dict) -> None:
        if not isinstance(msg["fn"], TorchDistributionMixin) or msg["infer"].get("_deterministic"):
            return  # plates and pyro.deterministic are no sites of the density
        if msg["infer"].get("fixed"):
            kind = "fixed"
        else:
            kind = "observed" if msg["is_observed"] else "latent"
        plates = {frame.name for frame in msg["cond_indep_stack"]}
        self.sites[msg["name"]] = Site(
            msg["fn"], msg["value"], kind, msg["scale"], msg["mask"], CLIENTS in plates, DATA in plates, msg["name"]
        )


class FrozenFeatures:
    """Outputs of networks while none of their parameters moves: exact, since inputs and weights are the same.

    Args:
        moving: names of the parameters that do move.
        compute: a network's output on all inputs, asked once and only if some network stands still: (S, n, features)
            for what is shown whole, or (N, features), of which places are shown.
    """

    def __init__(self, moving: frozenset[str], compute: Callable[[Network], Tensor]) -> None:
        self.moving, self.compute = moving, compute
        self._shown: Tensor | None = None
        self._places: Tensor | None = None
        self._kept: dict[int, Tensor] = {}

    @classmethod
    def of(cls, x: Tensor, moving: frozenset[str], values: Mapping[str, Tensor]) -> FrozenFeatures:
        """Of inputs that are shown whole, (S, n, *event), under these values."""
        found = cls(moving, lambda network: network.apply(network.parameters_from(values), x))
        found.show(x)
        return found

    def show(self, x: Tensor, places: Tensor | None = None) -> None:
        """Says that the model will be handed ``x``: all of the inputs, or those at these places (S, n)."""
        self._shown, self._places = x, places

    def serves(self, network: Network, x: Tensor) -> bool:
        """Whether the network's output on ``x`` is one that can be kept."""
        return x is self._shown and network.norm == "trained" and self.moving.isdisjoint(network.names)

    def features(self, network: Network) -> Tensor:
        """The network's output on what was shown."""
        if id(network) not in self._kept:
            with torch.no_grad():
                self._kept[id(network)] = self.compute(network)
        kept, places = self._kept[id(network)], self._places
        return kept if places is None else kept.index_select(0, places.flatten()).unflatten(0, places.shape)


def draw_with(noise: Noise | None) -> Draw:
    """How guide sites get their values: from client-keyed noise, or at their centre where there is none."""

    def draw(name: str, fn: Any, in_data: bool) -> Tensor:
        if isinstance(fn, Draws):
            return fn.mean if noise is None else fn.some(noise.particles)
        if noise is None:
            return reparametrise(fn, None, name)
        width = fn.batch_shape[-1] if in_data else None
        return reparametrise(fn, lambda: noise.normal(name, width, fn.event_shape), name)

    return draw
