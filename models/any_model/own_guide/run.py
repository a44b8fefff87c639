"""One run of a user's guide, for one client and one draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import transform_to

from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError

from ..densities import densities, kind, log_prob
from ..levels import Level, Model, level_of
from ..running import running
from .noise import FromNoise, Taken
from .params import Packed, Param

#: streams of random numbers: of what everyone shares, and of a client's own
SHARED_STREAM, OWN_STREAM = "shared", "own"


@dataclass(frozen=True)
class Guide:
    """A guide as it was read.

    Attributes:
        program: as its user writes it.
        shared, personal: its parameters.
        taken: how many random numbers a draw takes, by stream.
        by_path: whether log q moves with the parameters through values alone, see :mod:`.bound`.
    """

    program: Model
    shared: Packed
    personal: Packed
    taken: Taken
    by_path: bool = True

    @property
    def modules(self) -> dict[str, int]:
        """Ids of modules' parameters by name."""
        return {param.name: param.module for param in self.shared.params if param.module is not None}

    def run(
        self, batch: ColumnBatch, shared: Tensor, own: Tensor, noise: Mapping[str, Tensor], outside: float = 0.0
    ) -> Any:
        """The trace of a draw, a function of parameters and noise; see :class:`.noise.FromNoise`."""
        return self._at(batch, shared, own, noise, {}, outside)

    def given(self, batch: ColumnBatch, shared: Tensor, own: Tensor, values: Mapping[str, Tensor]) -> Any:
        """The trace at given values of all its sites."""
        return self._at(batch, shared, own, {}, values, 0.0)

    def stopped(self, params: Tensor) -> Tensor:
        """Parameters as log q sees them."""
        return params.detach() if self.by_path else params

    def _at(
        self, batch: ColumnBatch, shared: Tensor, own: Tensor, noise: Mapping[str, Tensor],
        values: Mapping[str, Tensor], outside: float,
    ) -> Any:  # fmt: skip
        params = self.shared.split(shared) | self.personal.split(own)
        modules = {module_id: params[name] for name, module_id in self.modules.items()}
        mode = FromNoise(noise, modules, outside)
        with (
            running(self.program, "the guide"),
            poutine.trace() as tracer,
            GivenParams(params),
            Drawing(mode, values),
            mode,
        ):
            self.program(batch)
        return tracer.trace


class GivenParams(Messenger):
    """Gives every ``pyro.param`` its value.

    Args:
        params: by name.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.params = params

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name not in self.params:
            raise UserError(f"param {name!r} is in the guide of some batches only: it may not depend on the data")
        msg["value"], msg["done"], msg["stop"] = self.params[name], True, True


class FirstParams(Messenger):
    """Notes every ``pyro.param``, and gives it its first value.

    Args:
        mode: by which modules take theirs in double precision.
    """

    def __init__(self, mode: FromNoise) -> None:
        super().__init__()
        self.mode = mode
        self.first_values: dict[str, Tensor] = {}
        self.constraints: dict[str, Any] = {}
        self.modules: dict[str, int] = {}

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name not in self.first_values:
            if len(msg["args"]) < 2:
                raise UserError(f"param {name!r} of the guide has no first value: write pyro.param({name!r}, VALUE)")
            first = msg["args"][1]
            module_id = id(first) if isinstance(first, torch.nn.Parameter) else None
            first = first() if callable(first) and not isinstance(first, Tensor) else first
            if not isinstance(first, Tensor):
                raise UserError(f"param {name!r} of the guide has no tensor as its first value")
            self.first_values[name] = first.detach().double()
            if module_id is not None:
                self.modules[name] = module_id
                self.mode.modules[module_id] = self.first_values[name]
            self.constraints[name] = msg["kwargs"].get("constraint", torch.distributions.constraints.real)
        msg["value"], msg["done"], msg["stop"] = self.first_values[name], True, True

    def params(self, personal: frozenset[str]) -> list[Param]:
        """All of them, of which some are clients' own."""
        return [self._param(name, value, personal) for name, value in self.first_values.items()]

    def _param(self, name: str, value: Tensor, personal: frozenset[str]) -> Param:
        transform = transform_to(self.constraints[name])
        free = transform.inv(value)
        if not free.isfinite().all():
            raise UserError(f"param {name!r} of the guide has a first value outside of its constraint, or at its edge")
        return Param(name, tuple(value.shape), free, transform, name in personal, self.modules.get(name))


class Drawing(Messenger):
    """Draws every site from noise, or gives it its value.

    Args:
        mode: where the noise is from.
        values: of sites by name; all others are drawn.
    """

    def __init__(self, mode: FromNoise, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.mode, self.values = mode, values

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["done"] or poutine.util.site_is_subsample(msg):
            return
        if msg["is_observed"]:
            if not msg["infer"].get("_deterministic"):
                raise UserError(f"the guide observes site {name!r}: what is observed belongs to the model")
            return
        if name in self.values:
            msg["value"] = self.values[name]
        else:
            if not fn.has_rsample:
                raise UserError(
                    f"the guide's site {name!r} has a distribution without reparametrised draws ({kind(fn)}): "
                    "leave discrete latents out, and take a continuous one for the others"
                )
            self.mode.stream, self.mode.site = (SHARED_STREAM if level_of(msg) == "global" else OWN_STREAM), name
            msg["value"] = fn.rsample()
            self.mode.stream = None
        msg["done"] = True


def values_of(trace: Any) -> dict[str, Tensor]:
    """Values of all sites of a guide."""
    return {site["name"]: site["value"] for site in densities(trace)}


def log_density(trace: Any, mask: Tensor | None, levels: tuple[Level, ...]) -> Tensor:
    """The log density of the sites of some levels, those of padded rows left out, ()."""
    total = torch.zeros((), dtype=torch.float64)
    for site in densities(trace):
        level = level_of(site)
        if level in levels:
            density = log_prob(site)
            total = total + (density if level != "data" else unpadded(density, mask)).sum()
    return total


def unpadded(density: Tensor, mask: Tensor | None) -> Tensor:
    """A density by rows (..., n), 0 where a row is padding."""
    return density if mask is None else torch.where(mask, density, torch.zeros((), dtype=density.dtype))
