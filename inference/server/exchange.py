"""What a method's clients and its server both know of their messages: groups, rules, forms, pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import is_statistic

from ..clients.chunk import ClientChunk
from ..messages.form import Form, malformed
from ..messages.pipeline import Pipeline, Stage
from ..state import State
from .rules.base import AggregationRule, form_of


@dataclass(frozen=True)
class Group:
    """Some shared values that one rule updates.

    Attributes:
        rule: makes the message and the update.
        names: the values.
        pipeline: what the message passes.
    """

    rule: AggregationRule
    names: tuple[str, ...]
    pipeline: Pipeline

    @property
    def sends(self) -> bool:
        """Whether clients send anything for it; or else its values follow from others that the server has."""
        return getattr(self.rule, "sends", True)

    @property
    def moving(self) -> Sequence[str]:
        """The values by which it is measured how far a round has moved: all, or those that the rule names."""
        return getattr(self.rule, "moving", self.names)

    @property
    def comparable(self) -> bool:
        """Whether honest clients' messages of a round are alike, so that one may stand out beside the others."""
        return getattr(self.rule, "comparable", True)

    @property
    def growing(self) -> Sequence[str]:
        """Values that are sums over rows, as large as there are many: as the rule names them, or all."""
        growing = getattr(self.rule, "growing", ())
        return self.names if growing is True else tuple(growing)

    @cached_property
    def form(self) -> Form:
        """What must hold of a message's numbers once it is received."""
        return self.pipeline.received


class Exchange:
    """A method's aggregation rules, and the shared values that each of them claims.

    Args:
        rules: {group: rule}, as a method declares them.
        pipeline: {group: stages}, likewise.
        expand: from a group to the names of its values, see :meth:`~hierfl.inference.method.base.Method.expand`.
        shared: the shared values, for their names, shapes and dtypes.

    Raises:
        UserError: if two rules claim one value, or a rule a value that does not exist.
    """

    def __init__(
        self,
        rules: Mapping[str, AggregationRule],
        pipeline: Mapping[str, Sequence[Stage]],
        expand: Callable[[str, Iterable[str]], tuple[str, ...]],
        shared: Mapping[str, Tensor],
    ) -> None:
        self.groups: dict[str, Group] = {}
        for name, rule in rules.items():
            names = expand(name, shared)
            if rule.sends_gradients and any(map(is_statistic, names)):
                raise UserError(
                    f"what is sent of {name!r} are gradients, and batch norm's running statistics have none: "
                    "another network, or a method that sends weights"
                )
            if names:
                form = form_of(rule, {k: shared[k] for k in names})
                if pipeline.get(name) and any(field.individual for field in form.values()):
                    raise UserError(
                        f"the messages of {name!r} are looked at one by one: they pass no pipeline, where masks could "
                        "be that only a sum undoes"
                    )
                self.groups[name] = Group(rule, names, Pipeline(pipeline.get(name, ()), names, form))
        unknown = pipeline.keys() - rules.keys()
        if unknown:
            raise UserError(f"pipeline() names {sorted(unknown)[0]!r}, which exchange() does not")
        claimed = [name for group in self.groups.values() for name in group.names]
        twice = {name for name in claimed if claimed.count(name) > 1}
        if twice:
            raise UserError(f"two aggregation rules claim {sorted(twice)[0]!r}")

    @cached_property
    def sending(self) -> dict[str, Group]:
        """The groups for which clients send something."""
        return {name: group for name, group in self.groups.items() if group.sends}

    @cached_property
    def individual(self) -> list[str]:
        """Groups of whose messages the server does not get the sum alone."""
        return [name for name, g in self.sending.items() if any(field.individual for field in g.form.values())]

    @cached_property
    def forms(self) -> dict[str, Form]:
        """{group: what must hold of a message once it is received}."""
        return {name: group.form for name, group in self.sending.items()}

    @cached_property
    def bytes(self) -> int:
        """The bytes of one client's message."""
        return sum(field.nbytes for group in self.sending.values() for field in group.pipeline.sent.values())

    @torch.no_grad()
    def messages(self, chunk: ClientChunk) -> dict[str, State]:
        """What these clients send, {group: {key: (S, ...)}}.

        Raises:
            UserError: if a rule's message has not the form that the rule declares.
        """
        messages = {}
        for name, group in self.sending.items():
            message = group.rule.message(group.names, chunk)
            problem = malformed(group.pipeline.form, message, len(chunk.clients), chunk.federation.device)
            if problem:
                rule = type(group.rule).__name__
                raise UserError(
                    f"{rule}, the aggregation rule of {name!r}, sends what it does not declare: {problem}; "
                    f"{rule}.form(old) must say what a message holds"
                )
            messages[name] = group.pipeline.send(message, chunk)
        return messages
