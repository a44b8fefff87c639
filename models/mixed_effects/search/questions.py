"""What clients are asked about the population, and what they answer: their log marginal likelihood, around one point or
at many.

Form and message follow from the requests of :mod:`.requests`. Every message passes the rule's pipeline
(:mod:`hierfl.inference.messages.pipeline`) on its way to the sum, which is all that a search sees of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form
from hierfl.inference.messages.singles import Singles
from hierfl.inference.server.robust.judged import Judged
from hierfl.inference.server.robust.rules import RobustRule
from hierfl.inference.state import State

from ..model.arithmetic import IMPOSSIBLE
from ..model.equations import MixedModel
from . import single_sites
from .requests import REQUESTS, Asked, Phase, Request, carried, most_points


@dataclass(frozen=True)
class Likelihoods:
    """Clients' log likelihoods as functions of the population: what a round asks of them is in the shared values.

    Args:
        method: whose population.
    """

    method: MixedModel
    sends_gradients: ClassVar[bool] = False

    @property
    def points(self) -> int:
        """Points of a round of many, M."""
        return most_points(self.method)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The form of messages around one point, and at many; what a round is not about is zero."""
        return self._form

    @cached_property
    def _form(self) -> Form:
        shapes = [shape for request in REQUESTS for shape in request.reply(self.method).items()]
        form = {name: Field(shape, torch.float64, impossible=-IMPOSSIBLE) for name, shape in shapes}
        return form | {"counts": replace(form["counts"], rows=lambda counts: counts[:, 1])}

    @property
    def estimated(self) -> Sequence[str]:
        """The coefficients."""
        return self.method.network.fixed

    def says(self, old: State) -> bool:
        """See :class:`~hierfl.inference.server.robust.judged.Judging`: climbs do."""
        return Phase(int(old["effects.phase"])) in (Phase.CLIMB, Phase.MODE) and bool(self.estimated)

    def judged(
        self, old: State, message: Mapping[str, Tensor], singles: Singles, rule: RobustRule | None, memory: State
    ) -> Judged:
        """See :class:`~hierfl.inference.server.robust.judged.Judging`: elsewhere nothing is known."""
        present = singles.valid
        if self.says(old):
            return single_sites.judged(self.method, old, message, present, rule, memory)
        unknown = torch.full((len(present), 4), torch.nan, dtype=torch.float64)
        return Judged(present.to(torch.float64), lambda: (unknown, None))

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's log likelihood as a function of the population: around a point, or at many; 1, n, groups."""
        asked = Asked(self.method, chunk.shared, self.method.likelihood.rows(chunk), chunk)
        requests = carried(self.method, chunk.shared)
        return self.replies(asked, requests, len(chunk.clients), chunk.federation.device)

    def replies(self, asked: Asked, requests: Sequence[Request], rows: int, device: torch.device) -> State:
        """All fields of a message, {name: (S, *shape)}: answers to some requests, and zeros.

        Args:
            asked: what is answered from.
            requests: to be answered.
            rows: S.
            device: of the zeros.
        """
        answers: State = {}
        for request in requests:
            answers |= request.answer(asked)
        return {
            name: answers[name] if name in answers
            else torch.zeros((), dtype=field.dtype, device=device).expand(rows, *field.shape)
            for name, field in self.form({}).items()
        }  # fmt: skip
