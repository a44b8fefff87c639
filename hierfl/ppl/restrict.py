"""The restriction of a model or guide to rows of its client plate, everything else held at given values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from torch import Tensor

from ..errors import UserError
from ..nn.functional import Drop
from ..nn.layers.batch_norm import Norms
from .frozen_features import FrozenFeatures
from .guide_draws import Draw, draw_with
from .plates import CLIENTS, DATA
from .sigma_points import Noise


class Site(NamedTuple):
    """What happened at a sample site."""

    fn: Any  # the distribution, broadcast to its plates
    value: Tensor
    kind: str  # "latent", "fixed" to a value from outside, or "observed"
    scale: Any
    mask: Any
    per_client: bool  # inside the client plate
    per_example: bool  # inside the data plate
    name: str = ""

    def redrawn(self, noise: Noise | None) -> dict[str, Site]:
        """The same site of a guide with a fresh draw, or at its centre without noise."""
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
            raise UserError(
                f"latent site {name!r} of the model is not in the guide, and nothing fixes it: sample it in the guide, "
                "declare it in shared() or personal(), or observe it (obs=...)"
            )

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
