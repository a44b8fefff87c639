"""The server module: what is shared, who takes part, and what becomes of the clients' messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import pyro
import torch
from torch import Tensor, nn

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.rng import uniform

from .compression import message_bytes
from .elbo import global_log_prob
from .forms import Field
from .method import Exchange, Local, Method, Rule, State, form_of
from .options import MAX_MESSAGE_RATIO

log = logging.getLogger("hierfl")

#: how an update may fail for its numbers; anything else is a fault of its code
NUMERICAL = (torch.linalg.LinAlgError, ArithmeticError)
#: characters of what others have sent that a line of the log repeats
LONGEST = 200


class Server(nn.Module):
    """Owns the shared state, sums valid messages and updates by the method's exchange rules.

    It lives on the run's device and moves nothing to the host during a round. A message that is missing or invalid
    counts as non-participation: it is dropped and counted, never averaged in. One is valid that has the form its rules
    declare (:class:`~hierfl.inference.forms.Field`), is its client's first in the round, and holds finite numbers of
    no more than :meth:`ceiling` in size. A round is void, and changes nothing, where fewer than the quorum have sent
    a valid message, or where a rule's update fails or is not finite.

    What this is not: a defence against a client that sends a plausible lie, such as a wrong n_j or a gradient of the
    wrong sign. The server sees sums alone, and no message beside another.

    Args:
        method: whose exchange rules.
        federation: for the number of clients and the model's prior terms.
        shared: initial shared state.
        personal: one client's initial row, {name: (*shape)}.
        quorum: a round with fewer valid messages changes nothing, and is counted as void.
        seed: of the server's own randomness.
        max_message_ratio: how far a client's value may go beyond the broadcast one; see
            :class:`~hierfl.inference.options.Options`.

    Raises:
        UserError: if two rules claim one value, or a rule a value that does not exist.
    """

    dropped: Tensor
    void: Tensor

    def __init__(
        self,
        method: Method,
        federation: Federation,
        shared: State,
        personal: State,
        quorum: int = 1,
        seed: int = 0,
        max_message_ratio: float = MAX_MESSAGE_RATIO,
    ) -> None:
        super().__init__()
        self.max_message_ratio = max_message_ratio
        self.method, self.quorum, self.seed, self.clients = method, quorum, seed, federation.clients
        self.names = list(shared)
        for name, value in shared.items():
            _register(self, name, value)
        self.rules: dict[str, tuple[Rule, tuple[str, ...]]] = {}
        for group, rule in method.exchange().items():
            names = method.expand(group, shared)
            if names:
                self.rules[group] = (rule, names)
            if rule.differentiates and any(map(is_statistic, names)):
                raise UserError(
                    f"what is sent of {group!r} are gradients, and batch norm's running statistics have none: "
                    "another network, or a method that sends weights"
                )
        claimed = [name for _, names in self.rules.values() for name in names]
        twice = {name for name in claimed if claimed.count(name) > 1}
        if twice:
            raise UserError(f"two exchange rules claim {sorted(twice)[0]!r}")
        #: what each group's messages hold
        self.forms = {
            group: form_of(rule, {k: shared[k] for k in names}) for group, (rule, names) in self.rules.items()
        }
        self._template = federation.template()
        self._personal = {k: v[None, None] for k, v in personal.items()}
        self.memory: dict[str, State] = {group: {} for group in self.rules}
        device = federation.device
        #: how many of each client's messages were dropped
        self.register_buffer("dropped", torch.zeros(self.clients, dtype=torch.int64, device=device))
        #: rounds that fell short of the quorum, or whose update failed
        self.register_buffer("void", torch.zeros((), dtype=torch.int64, device=device))
        #: how far each rule's values moved in the last round, root mean square
        self.moved = {group: torch.zeros((), device=device) for group in self.rules}
        #: rounds that have ended, and bytes that clients have sent (both known without asking the device)
        self.rounds, self.bytes = 0, 0
        #: messages of clients that do not exist (no engine here sends any, and no checkpoint holds their number)
        self.unknown = 0
        self._reported = torch.zeros((), dtype=torch.int64, device=device)
        self.open()

    @property
    def shared(self) -> State:
        """What is broadcast, {name: (*shape)}."""
        buffers = dict(self.named_buffers())
        return {name: buffers[name] for name in self.names}

    def replace(self, values: Mapping[str, Tensor]) -> None:
        """Sets shared values."""
        for name, value in values.items():
            owner, _, leaf = name.rpartition(".")
            self.get_submodule(owner)._buffers[leaf] = value

    # -- a round ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins a round: nothing has been received."""
        self._total: dict[str, State] = {}
        self._senders: set[int] = set()
        self._reported = torch.zeros_like(self._reported)
        self._scale: State = {}
        if self.max_message_ratio:
            scaled = {key for form in self.forms.values() for key, field in form.items() if field.scaled}
            shared = self.shared
            self._scale = {key: shared[key].abs().amax().clamp_min(1) for key in scaled if shared[key].numel()}

    def messages(self, local: Local) -> dict[str, State]:
        """What these clients send, {rule's group: {key: (S, *shape)}}.

        Raises:
            UserError: if a rule's message has not the form that the rule declares.
        """
        messages = {group: self.rules[group][0].message(self.rules[group][1], local) for group in self.heard}
        for group, message in messages.items():
            problem = self._malformed(group, message, len(local.clients))
            if problem:
                name = type(self.rules[group][0]).__name__
                raise UserError(
                    f"{name}, the exchange rule of {group!r}, sends what it does not declare: {problem}; "
                    f"{name}.form(old) must say what a message holds"
                )
        return messages

    @property
    def heard(self) -> list[str]:
        """Groups of values of which clients send something."""
        return [group for group, (rule, _) in self.rules.items() if getattr(rule, "sends", True)]

    def ceiling(self, dtype: torch.dtype) -> float:
        """The largest number that a message may hold: then neither sums overflow nor, scaled to J, their squares."""
        return math.sqrt(torch.finfo(dtype).max) / self.clients

    @torch.no_grad()
    def receive(self, messages: Mapping[str, State], clients: Sequence[int], healthy: Tensor | None = None) -> Tensor:
        """Checks messages and adds the valid ones to the sums.

        Args:
            messages: {group: {key: (S, *shape)}}, one row per client.
            clients: whose they are. Rows of clients that do not exist, and all but the first of a client in a round,
                are dropped. (A message that cannot be read is no client's first.)
            healthy: (S,), False where the client itself reports failure; None for all well.

        Returns:
            (S,), True where the message was used.
        """
        device, rows = self.dropped.device, len(clients)
        exist = self._existing(clients)
        problem = self._unreadable(messages, rows)
        if problem:
            log.warning("dropped the message of client%s %s: %s", "s" * (rows > 1), list(clients), problem)
        if problem or not rows:
            valid = torch.zeros(rows, dtype=torch.bool, device=device)
        else:
            valid = self._first(clients, exist)
            if healthy is not None:
                valid = valid & healthy
            for group, message in messages.items():
                rule, names = self.rules[group]
                self.bytes += rows * message_bytes(rule, names, message)
                valid = valid & self._sound(group, message)
            for group, message in messages.items():
                total = self._total.setdefault(group, {})
                for key, value in message.items():
                    used = torch.where(valid.view(-1, *[1] * (value.dim() - 1)), value, 0).sum(0)
                    total[key] = total[key] + used if key in total else used
            self._reported = self._reported + valid.sum()
        lost = ~valid if all(exist) else ~valid & torch.tensor(exist, dtype=torch.bool, device=device)
        index = [j if there else 0 for j, there in zip(clients, exist, strict=True)]
        self.dropped.index_add_(0, torch.tensor(index, dtype=torch.long, device=device), lost.long())
        return valid

    def _existing(self, clients: Sequence[int]) -> list[bool]:
        """Which of these clients there are; counts the others."""
        exist = [isinstance(j, int) and not isinstance(j, bool) and 0 <= j < self.clients for j in clients]
        if not all(exist):
            strangers = [j for j, there in zip(clients, exist, strict=True) if not there]
            log.warning("dropped messages of clients that do not exist: %s", str(strangers)[:LONGEST])
            self.unknown += len(strangers)
        return exist

    def _first(self, clients: Sequence[int], exist: Sequence[bool]) -> Tensor:
        """(S,), True where a row is its client's first message in this round, which it then has sent."""
        first = []
        for j, there in zip(clients, exist, strict=True):
            first.append(there and j not in self._senders)
            if there:
                self._senders.add(j)
        if all(first):
            return torch.ones(len(first), dtype=torch.bool, device=self.dropped.device)
        again = [j for j, there, new in zip(clients, exist, first, strict=True) if there and not new]
        if again:
            log.warning("dropped messages of clients that had sent one in this round: %s", str(again)[:LONGEST])
        return torch.tensor(first, dtype=torch.bool, device=self.dropped.device)

    def _unreadable(self, messages: Mapping[str, State], rows: int) -> str:
        """What is wrong with the form of these messages, or nothing."""
        if not isinstance(messages, Mapping) or set(messages) != set(self.heard):
            return f"it speaks of {_listed(messages)}, expected {sorted(self.heard)}"
        problems = (self._malformed(group, message, rows) for group, message in messages.items())
        return next(filter(None, problems), "")

    def _malformed(self, group: str, message: State, rows: int) -> str:
        """What is wrong with the form of a group's message, or nothing."""
        form = self.forms[group]
        if not isinstance(message, Mapping):
            return f"that of {group!r} is no mapping"
        missing = sorted(form.keys() - message.keys())
        if missing:
            return f"{missing[0]!r} is missing"
        if len(message) > len(form):
            return f"it has {_listed(message)}, expected {sorted(form)}"
        for key, field in form.items():
            value, expected = message[key], (rows, *field.shape)
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                return f"{key!r} is no dense tensor"
            if value.dtype is not field.dtype or value.device != self.dropped.device:
                return f"{key!r} is of {value.dtype} on {value.device}, expected {field.dtype} on {self.dropped.device}"
            if tuple(value.shape) != expected:
                return f"{key!r} has shape {tuple(value.shape)[1:]}, expected {expected[1:]}"
        return ""

    def _sound(self, group: str, message: State) -> Tensor:
        """(S,), True where the numbers are what the group's rule declares."""
        sound = torch.ones((), dtype=torch.bool, device=self.dropped.device)
        for key, field in self.forms[group].items():
            value = message[key]
            if value.numel():
                sound = sound & self._fits(key, value, field, message)
        return sound

    def _fits(self, key: str, value: Tensor, field: Field, message: State) -> Tensor:
        """(S,), True where the numbers under one key are finite, not too large, and what else must hold."""
        size = _size(value, 1)  # (not a number where one of them is not, and so below nothing)
        fits = size <= self.ceiling(value.dtype)
        if field.holds is not None:
            fits = fits & _everywhere(field.holds(value))
        if field.agrees is not None:
            fits = fits & _everywhere(field.agrees(message))
        if not (field.scaled and self.max_message_ratio):
            return fits
        limit = self.max_message_ratio * self._scale[key]
        if field.value is not None:
            return fits & (_size(field.value(message), 1) <= limit)
        if field.weight is None:
            return fits & (size <= limit)
        weight = field.weight(message)
        return fits & _everywhere((size if weight.dim() == 1 else _size(value, weight.dim())) <= limit * weight)

    def close(self) -> None:
        """Ends a round: updates the shared values, unless it is void."""
        self.rounds += 1
        if not self.rules:
            return
        if not self._total:
            self._void()
            return
        old = self.shared
        try:
            new, memory = self._updated(old)
        except NUMERICAL as error:
            log.warning("round %d is void: %s: %s", self.rounds, type(error).__name__, str(error)[:LONGEST])
            self._void()
            return
        # a round is void as a whole, whichever rule fails; and computed also with too few reports: no number leaves the
        # device
        sound = self._reported >= self.quorum
        for value in (*new.values(), *(v for kept in memory.values() for v in kept.values())):
            sound = sound & value.isfinite().all().to(sound.device)
        new = {k: torch.where(sound, v, old[k]) for k, v in new.items()}
        for group, (_, names) in self.rules.items():
            gaps = torch.cat([(new[k] - old[k]).flatten() for k in names])
            self.moved[group] = gaps.square().mean().sqrt().to(torch.float32)
            before = self.memory[group]  # an optimiser that has not begun remembers zeros
            self.memory[group] = {
                k: torch.where(sound.to(v.device), v, before.get(k, torch.zeros_like(v)))
                for k, v in memory[group].items()
            }
        self.replace(new)
        self.void += (~sound).long()

    def _updated(self, old: State) -> tuple[State, dict[str, State]]:
        """What the rules make of the sums: new shared values, and what each rule then remembers."""
        new: State = {}
        memory: dict[str, State] = {}
        for group, (rule, names) in self.rules.items():
            memory[group] = {k: v.clone() for k, v in self.memory[group].items()}
            exchange = Exchange(
                self.clients,
                self._reported.clamp_min(1).to(old[names[0]].dtype),
                self.rounds,
                self._prior_gradient,
                memory[group],
                old,  # every rule sees the same old values
                self.seed,
            )
            found = rule.update({k: old[k] for k in names}, self._total.get(group, {}), exchange)
            for k in names:
                if found[k].shape != old[k].shape or found[k].dtype != old[k].dtype:
                    raise UserError(
                        f"{type(rule).__name__}, the exchange rule of {group!r}, makes {k!r} "
                        f"{tuple(found[k].shape)} of {found[k].dtype}; it was {tuple(old[k].shape)} of {old[k].dtype}"
                    )
                new[k] = found[k]
        return new, memory

    def _void(self) -> None:
        """Counts a round in which nothing has changed."""
        self.void += 1
        self.moved = {group: torch.zeros_like(value) for group, value in self.moved.items()}

    def _prior_gradient(self, names: Sequence[str]) -> State:
        leaves = {k: v.detach().clone().requires_grad_() for k, v in self.shared.items() if k in names}
        with (
            torch.enable_grad(),
            pyro.validation_enabled(False),
        ):  # (shared values that have diverged are told elsewhere)
            value = global_log_prob(self.method, self._template, {**self.shared, **leaves}, self._personal)
        if not value.requires_grad:
            return {k: torch.zeros_like(v) for k, v in leaves.items()}
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), found, strict=True)}

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything a resumed server needs, flat."""
        memory = {f"memory/{group}/{k}": v for group, kept in self.memory.items() for k, v in kept.items()}
        return {
            **{f"shared/{k}": v for k, v in self.shared.items()},
            **memory,
            **{f"moved/{group}": value for group, value in self.moved.items()},
            "dropped": self.dropped,
            "void": self.void,
            "counts": torch.tensor([self.rounds, self.bytes]),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""
        self.replace({k: state[f"shared/{k}"] for k in self.names})
        self.dropped.copy_(state["dropped"])
        self.void.copy_(state["void"])
        self.rounds, self.bytes = state["counts"].tolist()
        for group, old in self.moved.items():
            self.moved[group] = state.get(f"moved/{group}", old)  # (older checkpoints have none)
        for group, kept in self.memory.items():
            prefix = f"memory/{group}/"
            kept.update({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})


def _size(value: Tensor, dims: int) -> Tensor:
    """The largest absolute value over all but the first dimensions; not a number where there is one that is none.

    (On a CPU a tenth of what ``isfinite`` and ``all`` take.)
    """
    return value.abs() if value.dim() <= dims else value.abs().flatten(dims).amax(-1)


def _everywhere(holds: Tensor) -> Tensor:
    """(S, ...) to (S,): whether it holds in all of a row."""
    return holds if holds.dim() == 1 else holds.flatten(1).all(1)


def _listed(names: object) -> str:
    """Keys that others have chosen, on one line and not too long."""
    if not isinstance(names, Mapping):
        return type(names).__name__
    return f"[{', '.join(sorted(map(repr, names)))}]"[:LONGEST]


def _register(module: nn.Module, name: str, value: Tensor) -> None:
    """Registers a buffer under a dotted name, as torch itself names what lies in nested modules."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_buffer(leaf, value)


#: how often who reports is drawn again before that is given up
ATTEMPTS = 10_000


def check_participation(clients: int, probability: float, least: int) -> None:
    """Refuses what :func:`participants` would give up on in one round of a hundred million, or more often.

    Raises:
        UserError: if ``least`` of so many clients practically never report together.
    """
    if probability >= 1:
        return
    log_p, log_q = math.log(probability), math.log1p(-probability)
    enough = math.fsum(
        math.exp(math.lgamma(clients + 1) - math.lgamma(k + 1) - math.lgamma(clients - k + 1)
                 + k * log_p + (clients - k) * log_q)
        for k in range(least, clients + 1)
    )  # fmt: skip
    if ATTEMPTS * enough < math.log(1e8):
        raise _never(clients, probability, least)


def _never(clients: int, probability: float, least: int) -> UserError:
    return UserError(
        f"with participation {probability} of {clients} clients, {least} practically never report together; "
        "raise --participation"
    )


def participants(federation: Federation, round: int, seed: int, probability: float, least: int) -> list[int]:
    """Who reports in this round: every client for itself with the same probability (Bernoulli), keyed by its id.

    Where fewer than ``least`` would, everyone draws again (pFedVEM's public code asks for two).

    Raises:
        UserError: if that many practically never report.
    """
    if probability >= 1:
        return list(range(federation.clients))
    for attempt in range(ATTEMPTS):
        chosen = [j for j, c in enumerate(federation.ids) if uniform(seed, round, c, "reports", attempt) < probability]
        if len(chosen) >= least:
            return chosen
    raise _never(federation.clients, probability, least)
