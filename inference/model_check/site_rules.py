"""What each parameter and site of a model or guide must be, looked at while it is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.ppl.plates import CLIENTS, DATA
from hierfl.ppl.restrict import Site

from ..clients.checks import check_site_shape
from .latents import check_latent
from .supports import described, example_outside, outside, support_of, unbounded

#: what stands instead of a plate of Pyro's, by its dimension
REMEDY = {-1: "'with data(batch):'", -2: "'with clients(batch):'"}


class SiteRules(Messenger):
    """Refuses a parameter or site that would be treated otherwise than it reads.

    Args:
        program: which of the two is run.
        batch: with what.
        shared: initial shared values, {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        free: values that gradient steps move, over all real numbers.
        particles: K, the draws of the guide.
        latents: those of the guide, for the model.
    """

    def __init__(
        self,
        program: Literal["model", "guide"],
        batch: Batch,
        shared: Mapping[str, Tensor],
        personal: Mapping[str, Tensor],
        free: Collection[str],
        particles: int,
        latents: Mapping[str, Site] | None = None,
    ) -> None:
        super().__init__()
        self.program, self.batch, self.shared, self.personal = program, batch, shared, personal
        self.free, self.particles, self.latents = free, particles, latents or {}
        self._foreign: set[str] = set()
        self._names: set[str] = set()

    def __enter__(self) -> SiteRules:
        self._foreign, self._names = set(), set()
        super().__enter__()
        return self

    def _pyro_param(self, msg: Any) -> None:
        name, constraint = msg["name"], msg["kwargs"].get("constraint")
        if constraint is not None and not unbounded(constraint):
            raise UserError(
                f"param {name!r} has a constraint ({described(constraint)}), which is not kept: its values move over "
                f"all real numbers; declare an unconstrained one (log_{name}, say), and write param('log_{name}').exp()"
            )
        declared = {**self.shared, **self.personal}
        if len(msg["args"]) > 1 and msg["args"][1] is not None and name in declared:
            start = msg["args"][1]() if callable(msg["args"][1]) else torch.as_tensor(msg["args"][1])
            same = start.shape == declared[name].shape and torch.allclose(start.to(declared[name]), declared[name])
            if not same:
                where = "personal()" if name in self.personal else "shared()"
                raise UserError(
                    f"param {name!r} has an initial value of its own, which is not used: it starts from what {where} "
                    f"declares; write param({name!r})"
                )

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if not isinstance(fn, TorchDistributionMixin):  # a plate of Pyro's announces its indices
            self._foreign.add(name)
            return
        if msg["infer"].get("_deterministic"):
            return
        if name in self._names:
            raise UserError(f"site {name!r} is there twice in the {self.program}: give each site a name of its own")
        self._names.add(name)
        frames = msg["cond_indep_stack"]
        for frame in frames:
            if self._unknown(frame) and self._of_the_batch(msg):
                by_size = {self.batch.num_clients: -2, self.batch.width: -1}
                remedy = REMEDY.get(by_size.get(frame.size, frame.dim), "a distribution with .to_event(...)")
                raise UserError(
                    f"site {name!r} of the {self.program} is in pyro.plate({frame.name!r}), which does not know "
                    f"chunks, padding and the weight of a minibatch: write {remedy} in its place (from "
                    "hierfl.ppl.plates)"
                )
        if any(frame.name == CLIENTS for frame in frames):
            per_example = any(frame.name == DATA for frame in frames)
            check_site_shape(name, fn, per_example, self.batch.num_clients, self.batch.width, self.particles)
        elif any(frame.name == DATA for frame in frames):
            raise UserError(
                f"site {name!r} of the {self.program} is in the data plate, but in no client's: "
                "write 'with clients(batch):' around 'with data(batch):'"
            )

    def _unknown(self, frame: Any) -> bool:
        return frame.name in self._foreign or (frame.name, frame.dim) not in ((CLIENTS, -2), (DATA, -1))

    def _of_the_batch(self, msg: Any) -> bool:
        """Whether a site belongs to clients or examples; a global one may be in plates of Pyro's."""
        names = {frame.name for frame in msg["cond_indep_stack"]}
        if names & ({CLIENTS, DATA} | {frame.name for frame in msg["cond_indep_stack"] if frame.dim is None}):
            return True
        if msg["is_observed"]:
            shape = () if msg["value"] is None else tuple(msg["value"].shape)
            return shape[:2] == (self.batch.num_clients, self.batch.width)
        return msg["name"] not in self.shared

    def _pyro_post_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if not isinstance(fn, TorchDistributionMixin) or msg["infer"].get("_deterministic"):
            return
        fixed = msg["infer"].get("fixed")
        if self.program == "guide":
            if fixed:
                raise UserError(
                    f"guide site {name!r} is a value that shared() or personal() declares, and so a point: what the "
                    "guide says of it is not used; leave it out of the guide"
                )
            if msg["is_observed"]:
                raise UserError(
                    f"guide site {name!r} is observed or a factor, which a guide cannot have: it is ignored"
                )
            return
        per_client, per_example = (
            any(frame.name == plate for frame in msg["cond_indep_stack"]) for plate in (CLIENTS, DATA)
        )
        if name in self.latents:
            check_latent(name, self.latents[name], fn, per_client, per_example)
        if fixed and per_client and name in self.shared:
            raise UserError(
                f"site {name!r} is a shared value, but is sampled in the client plate, where its prior counts once for "
                "each client: sample it before 'with clients(batch):'"
            )
        if fixed and name in self.free and (support := support_of(fn)) is not None and not unbounded(support):
            raise UserError(
                f"site {name!r} has a bounded support ({described(support)}), but gradient steps move its value over "
                "all real numbers: declare its logarithm, or another unconstrained value, in its place"
            )
        if per_example and msg["is_observed"] and fn.event_dim == 0 and msg["value"].shape[-2:] != fn.batch_shape[-2:]:
            raise UserError(
                f"site {name!r} observes values of shape {tuple(msg['value'].shape)}, and its distribution has batch "
                f"shape {tuple(fn.batch_shape)}: both are (clients, examples), so write obs=batch.y"
            )
        if (fixed or msg["is_observed"]) and outside(fn, msg["value"]):
            what = "starts at" if fixed else "observes"
            raise UserError(
                f"site {name!r} {what} {example_outside(fn, msg['value']):.6g}, outside the support of its "
                f"distribution, {described(support_of(fn))}: change the distribution, or the "
                f"{'initial value' if fixed else 'responses'}"
            )
