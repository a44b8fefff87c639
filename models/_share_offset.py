"""Label shares in the likelihood of methods whose clients have heads of their own: is it the shares or the method?

    pi_j         ~ the population of label shares (:mod:`hierfl.ppl.label_shares`), n_j its counts
    y_ij | x_ij  ~ Categorical(softmax(f_j(x_ij) + log E[pi_j | n_j] - log m))

f_j is the method's own predictor. A head that is trained on a client's labels without the offset learns the client's
shares itself, and the offset at prediction would count them twice. With it the head learns what else is the client's.
m are the pooled shares, or equal ones where a global head balances classes. Counts stay at their client; the
population is learned from their sums.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.label_shares import LabelSharePopulation
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.label_shares import LabelShares, log_offset
from hierfl.ppl.plates import param

#: share of a client's labels that come as for neutral shares, as in pfedhb
FLOOR = 1e-4


def shares_setting() -> Any:
    """The setting of label shares of a method with an offset."""
    return setting(
        "off", "whether the likelihood has the offset of the client's label shares, learned as in pfedhb", newer=True
    )


class ShareOffset:
    """What a method adds for ``shares="on"``; nothing of it where they are off."""

    balances_classes: ClassVar[bool] = False
    rule: ClassVar = LabelSharePopulation("shares", "class_counts")
    settings: Any
    network: Architecture

    def check_offset(self, name: str) -> None:
        """Refuses a regression.

        Raises:
            UserError: for one.
        """
        if self.label_shares and self.network.noise is not None:
            raise UserError(f"{name} with shares=on has a population of label shares: data with labels, no regression")

    @property
    def label_shares(self) -> bool:
        """Whether there is an offset."""
        return bool(self.settings.shares == "on")

    def share_population(self, shared: State, counts: Tensor | None = None) -> LabelShares:
        """See :class:`~hierfl.inference.method.label_shares.HasLabelShares`."""
        return self.rule.population(shared, counts)

    def neutral_shares(self, shared: State) -> Tensor:
        """Those without an offset."""
        pooled = shared["shares.log_pooled"].softmax(-1)
        return pooled.new_full(pooled.shape, 1 / len(pooled)) if self.balances_classes else pooled

    def at_shares(self, shared: State, pi: Tensor) -> State:
        """The offset for other shares."""
        return {"offset": log_offset(pi, self.neutral_shares(shared), FLOOR)}

    def at_client(self, f: Tensor) -> Tensor:
        """A client's logits from its predictor's, (..., S, n, C)."""
        return f + param("offset") if self.label_shares else f

    def offset_of(self, values: State) -> Tensor:
        """log E[pi_j | n_j] - log m, (S, 1, C)."""
        given = self.share_population(values, values["class_counts"])
        return self.at_shares(values, given.mean)["offset"].to(values["offset"])

    def offset_shared(self, start: InitialWeights) -> State:
        """The population."""
        classes = self.network.head.outputs
        equal = -start.head.new_full((classes,), classes).log()
        return dict(zip(self.rule.names, (equal, equal.new_zeros(1), equal), strict=True)) if self.label_shares else {}

    def offset_personal(self, start: InitialWeights) -> State:
        """Counts, and the offset of a client of which nothing is known."""
        nothing = start.head.new_zeros(self.network.head.outputs)
        return {"class_counts": nothing, "offset": nothing} if self.label_shares else {}

    def offset_steps(self) -> list[LocalStep]:
        """The local steps before a client trains: class counts and offset; none where shares are off."""
        steps: list[LocalStep] = [ClassCounts("class_counts"), ClosedForm("offset", self.offset_of)]
        return steps if self.label_shares else []

    def offset_rules(self) -> dict[str, LabelSharePopulation]:
        """How the population is learned."""
        return {"shares": self.rule} if self.label_shares else {}
