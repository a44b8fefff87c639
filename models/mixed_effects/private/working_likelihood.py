"""The likelihood of noisy scores and information, instead of that of rows of a binary response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ..likelihood.quadrature.likelihood import Quadrature
from .noisy_likelihood import NoisyGaussian
from .noisy_moments import NoisyMoments, Quadratic
from .working import WorkingMoments
from .working_release import WorkingRelease, message_parts


@dataclass(frozen=True)
class NoisyWorking(NoisyGaussian):
    """A quadratic in the coefficients; clients' own effects are by quadrature over their own rows."""

    automatic: ClassVar[Literal["reml", "auto"]] = "reml"

    @property
    def own(self) -> Quadrature:
        """The likelihood of a client's own rows."""
        return Quadrature(self.method)

    def check(self) -> None:
        """Refuses settings that belong to another likelihood."""
        if self.method.settings.kenward_roger:
            raise UserError("kenward_roger is of a gaussian response without noise")

    def personal(self) -> State:
        """What has been sent, and where."""
        private = self.method.private
        assert private is not None
        sent = {"released": torch.zeros(private.numbers), "released_rows": torch.zeros(2)}
        return {**self.own.personal(), **sent, "point": torch.zeros(len(private.columns.names))}

    def steps(self) -> list[LocalStep]:
        """The release."""
        return [WorkingRelease(self.method)]

    def working(self, packed: Tensor, points: Tensor, number: int) -> WorkingMoments:
        """The working moments of messages (J, .) of a round at points (J, c)."""
        private, network = self.method.private, self.method.network
        assert private is not None
        columns, sd = private.columns, private.sds[number - 1]
        information, scores, _ = message_parts(packed, len(columns.names))
        fixed = columns.of_design(network.fixed, network.fixed_units)
        random = columns.of_design(network.random, network.random_units)
        return WorkingMoments.around(information, scores, points, sd, fixed, random)

    def quadratic(self, moments: NoisyMoments, covariance: Tensor, parts: Mapping[str, Tensor]) -> Quadratic:
        """The quadratic at points."""
        return moments.quadratic(covariance, covariance.new_ones(len(covariance)))

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes from the clients' own rows."""
        return self.own.modes(batch, values, shared)

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Likewise."""
        return self.own.conditional(chunk, shared)

    @property
    def searched(self) -> Sequence[str]:
        """The mode."""
        return self.own.searched

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Likewise."""
        return self.own.joint(chunk, draws, phase)

    def damping(self, far: Tensor) -> Any:
        """The damping of Newton steps in a client's own rows."""
        return self.own.damping(far)
