"""The server module: shared values and sums of messages in, shared values out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyro
import torch
from torch import Tensor, nn

from hierfl.data.batch import Batch
from hierfl.errors import UserError

from ..messages.form import LONGEST
from ..messages.sums import Sums
from ..objective.joint_model import JointModel
from ..objective.log_joint import global_log_prob
from ..state import State, all_finite
from .exchange import Exchange
from .rules.base import AggregationContext

log = logging.getLogger("hierfl")
#: how an update may fail for its numbers; anything else is a fault of its code
NUMERICAL = (torch.linalg.LinAlgError, ArithmeticError)


@dataclass(frozen=True)
class ServerState:
    """Everything that the server keeps from round to round.

    Attributes:
        shared: what is broadcast, {name: (*shape)}.
        rule_state: what each rule remembers, {group: {name: tensor}}.
        update_norm: how far each group's values moved in the last round, root mean square, {group: ()}.
        skipped: rounds that have changed nothing, (), int64.
        last_skipped: whether the last round was one of them, (), bool.
        round: rounds that have ended.
        bytes: what clients have sent so far.
        replies: personal values that rules have made of the last round's messages, {name: (J, *shape)}. They are in no
            checkpoint: with the next broadcast they are the clients'.
    """

    shared: State
    rule_state: Mapping[str, State]
    update_norm: Mapping[str, Tensor]
    skipped: Tensor
    last_skipped: Tensor
    round: int = 0
    bytes: int = 0
    replies: State = field(default_factory=dict)

    def tensors(self) -> State:
        """All of it by name, for a checkpoint."""
        return {
            **{f"shared/{k}": v for k, v in self.shared.items()},
            **{f"rule_state/{group}/{k}": v for group, kept in self.rule_state.items() for k, v in kept.items()},
            **{f"update_norm/{group}": value for group, value in self.update_norm.items()},
            "skipped": self.skipped,
            "counts": torch.tensor([self.round, self.bytes]),
        }

    def restored(self, tensors: Mapping[str, Tensor]) -> ServerState:
        """The state that :meth:`tensors` has described, of a server like this one's."""
        round, sent = tensors["counts"].tolist()
        kept: dict[str, State] = {}
        for group in self.rule_state:
            prefix = f"rule_state/{group}/"
            kept[group] = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        return replace(
            self,
            shared={k: tensors[f"shared/{k}"] for k in self.shared},
            rule_state=kept,
            update_norm={group: tensors[f"update_norm/{group}"] for group in self.update_norm},
            skipped=tensors["skipped"],
            round=round,
            bytes=sent,
            replies={},
        )


class ServedModel(JointModel, Protocol):
    """What the server needs of a method beside its rules."""

    @property
    def replies(self) -> Sequence[str]:
        """Personal values that rules may make, see :attr:`~hierfl.inference.method.base.Method.replies`."""
        ...


class Server(nn.Module):
    """Updates the shared values by the method's aggregation rules, from sums alone.

    It works on the device of the values that it is given, and moves nothing to the host. It knows no data and no
    client: a round is skipped, and changes nothing, where fewer than the quorum have sent a valid message, or where a
    rule's update fails or is not finite.

    Args:
        model: the method, for log p(globals), and for which personal values rules may make.
        exchange: the method's rules.
        template: a batch of one row without data, which is all that log p(globals) needs.
        initial: one client's initial values, {name: (*shape)}; log p(globals) does not depend on them.
        clients: J.
        quorum: a round with fewer valid messages changes nothing.
        seed: of the server's own randomness.
    """

    def __init__(
        self,
        model: ServedModel,
        exchange: Exchange,
        template: Batch,
        initial: State,
        clients: int,
        quorum: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model, self.exchange, self.template = model, exchange, template
        self.clients, self.quorum, self.seed = clients, quorum, seed
        self._initial = {k: v[None, None] for k, v in initial.items()}

    def begin(self, shared: State) -> ServerState:
        """The state before the first round."""
        device = self.template.x.device
        groups = self.exchange.groups
        return ServerState(
            shared,
            {group: {} for group in groups},
            {group: torch.zeros((), device=device) for group in groups},
            torch.zeros((), dtype=torch.int64, device=device),
            torch.zeros((), dtype=torch.bool, device=device),
        )

    @torch.no_grad()
    def forward(self, state: ServerState, sums: Sums) -> ServerState:
        """Ends a round.

        Args:
            state: as the round began.
            sums: what the clients have sent.

        Returns:
            The state with which the next one begins; nothing of the old one has changed.
        """
        state = replace(state, round=state.round + 1, bytes=state.bytes + sums.bytes, replies={})
        if not self.exchange.groups:
            return state
        if not sums.totals:
            return _skipped(state)
        try:
            new, kept, replies = self._updated(state, sums)
        except NUMERICAL as error:
            log.warning("round %d is skipped: %s: %s", state.round, type(error).__name__, str(error)[:LONGEST])
            return _skipped(state)
        # a round is skipped as a whole, whichever rule fails; and computed also with too few reports: no number leaves
        # the device
        made = (*new.values(), *(v for rule in kept.values() for v in rule.values()), *replies.values())
        valid = sums.reported >= self.quorum
        valid = valid & all_finite(made, valid.device)
        old = state.shared
        new = {k: torch.where(valid, v, old[k]) for k, v in new.items()}
        norms, rule_state = {}, {}
        for name, group in self.exchange.groups.items():
            gaps = torch.cat([(new[k] - old[k]).flatten() for k in group.moving])
            norms[name] = gaps.square().mean().sqrt().to(torch.float32)
            rule_state[name] = {k: _kept(v, state.rule_state[name].get(k), valid) for k, v in kept[name].items()}
        return replace(
            state,
            shared={**old, **new},
            rule_state=rule_state,
            update_norm=norms,
            skipped=state.skipped + (~valid).long(),
            last_skipped=~valid,
            replies=replies,  # of a skipped round no message was used
        )

    def _updated(self, state: ServerState, sums: Sums) -> tuple[State, dict[str, State], State]:
        """What the rules make of the sums: new shared values, what each rule then remembers, and replies."""
        old, new, kept, replies = state.shared, State(), dict[str, State](), State()
        for name, group in self.exchange.groups.items():
            kept[name] = {k: v.clone() for k, v in state.rule_state[name].items()}
            context = AggregationContext(
                self.clients,
                sums.reported.clamp_min(1).to(old[group.names[0]].dtype),
                state.round,
                lambda names: self._prior_gradient(old, names),
                kept[name],
                old,  # every rule sees the same old values
                self.seed,
                replies,
            )
            total = group.pipeline.total(sums.totals.get(name, {}))
            updated = group.rule.update({k: old[k] for k in group.names}, total, context)
            for k in group.names:
                if updated[k].shape != old[k].shape or updated[k].dtype != old[k].dtype:
                    raise UserError(
                        f"{type(group.rule).__name__}, the aggregation rule of {name!r}, makes {k!r} "
                        f"{tuple(updated[k].shape)} of {updated[k].dtype}; "
                        f"it was {tuple(old[k].shape)} of {old[k].dtype}"
                    )
                new[k] = updated[k]
        for k, value in replies.items():
            own = self._initial.get(k)
            if k not in self.model.replies or own is None or value.shape != (self.clients, *own.shape[2:]):
                raise UserError(
                    f"a rule replies {k!r} {tuple(value.shape)}: replies are rows of personal values that the method "
                    f"names in `replies`, {sorted(self.model.replies)}, one for each of {self.clients} clients"
                )
        return new, kept, replies

    def _prior_gradient(self, shared: State, names: Sequence[str]) -> State:
        leaves = {k: v.detach().clone().requires_grad_() for k, v in shared.items() if k in names}
        with (
            torch.enable_grad(),
            pyro.validation_enabled(False),
        ):  # shared values that have diverged are reported elsewhere
            value = global_log_prob(self.model, self.template, {**shared, **leaves}, self._initial)
        if not value.requires_grad:
            return {k: torch.zeros_like(v) for k, v in leaves.items()}
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), slopes, strict=True)}


def _skipped(state: ServerState) -> ServerState:
    """The state after a round in which nothing has changed."""
    return replace(
        state,
        update_norm={group: torch.zeros_like(value) for group, value in state.update_norm.items()},
        skipped=state.skipped + 1,
        last_skipped=torch.ones_like(state.last_skipped),
    )


def _kept(new: Tensor, before: Tensor | None, valid: Tensor) -> Tensor:
    """What a rule remembers: the new value of a sound round, else the one before."""
    if before is None:  # an optimiser that has not begun remembers zeros
        before = torch.zeros_like(new)
    if before.shape != new.shape:  # nothing is broadcast: a search may go on with another number of unknowns
        return new if bool(valid) else before
    if valid.device.type == "cpu":  # nothing is waited for, and nothing is copied
        return new if bool(valid) else before
    return torch.where(valid.to(new.device), new, before)
