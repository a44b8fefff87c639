"""The server module: what is shared, who takes part, and what becomes of the clients' messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pyro
import torch
from torch import Tensor, nn

from hierfl.batch_norm import is_statistic
from hierfl.errors import UserError
from hierfl.federation import Federation
from hierfl.noise import uniform

from .compression import message_bytes
from .elbo import global_log_prob
from .method import Exchange, Local, Method, State

log = logging.getLogger("hierfl")


class Server(nn.Module):
    """Owns the shared state, sums valid messages and updates by the method's exchange rules.

    It lives on the run's device and moves nothing to the host during a round. A message that is missing or invalid
    counts as non-participation: it is dropped and counted, never averaged in.

    Args:
        method: whose exchange rules.
        federation: for the number of clients and the model's prior terms.
        shared: initial shared state.
        personal: one client's initial row, {name: (*shape)}.
        quorum: a round with fewer valid messages changes nothing, and is counted as void.
        seed: of the server's own randomness.

    Raises:
        UserError: if two rules claim one value, or a rule a value that does not exist.
    """

    dropped: Tensor
    void: Tensor

    def __init__(
        self, method: Method, federation: Federation, shared: State, personal: State, quorum: int = 1, seed: int = 0
    ) -> None:
        super().__init__()
        self.method, self.quorum, self.seed, self.clients = method, quorum, seed, federation.clients
        self.names = list(shared)
        for name, value in shared.items():
            _register(self, name, value)
        self.rules = {}
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
        self._template = federation.template()
        self._personal = {k: v[None, None] for k, v in personal.items()}
        self.memory: dict[str, State] = {group: {} for group in self.rules}
        device = federation.device
        #: how many of each client's messages were dropped
        self.register_buffer("dropped", torch.zeros(self.clients, dtype=torch.int64, device=device))
        #: rounds that fell short of the quorum
        self.register_buffer("void", torch.zeros((), dtype=torch.int64, device=device))
        #: how far each rule's values moved in the last round, root mean square
        self.moved = {group: torch.zeros((), device=device) for group in self.rules}
        #: rounds that have ended, and bytes that clients have sent (both known without asking the device)
        self.rounds, self.bytes = 0, 0
        self._total: dict[str, State] = {}
        self._reported = torch.zeros((), dtype=torch.int64, device=device)

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
        self._total = {}
        self._reported = torch.zeros_like(self._reported)

    def messages(self, local: Local) -> dict[str, State]:
        """What these clients send, {rule's group: {key: (S, *shape)}}."""
        return {group: self.rules[group][0].message(self.rules[group][1], local) for group in self.heard}

    @property
    def heard(self) -> list[str]:
        """Groups of values of which clients send something."""
        return [group for group, (rule, _) in self.rules.items() if getattr(rule, "sends", True)]

    def receive(self, messages: Mapping[str, State], clients: Sequence[int], healthy: Tensor | None = None) -> Tensor:
        """Checks messages and adds the valid ones to the sums.

        Args:
            messages: {group: {key: (S, *shape)}}, one row per client.
            clients: whose they are.
            healthy: (S,), False where the client itself reports failure; None for all well.

        Returns:
            (S,), True where the message was used.
        """
        index = torch.tensor(clients, dtype=torch.long, device=self.dropped.device)
        problem = self._malformed(messages, len(clients))
        if problem:
            log.warning("dropped the message of client%s %s: %s", "s" * (len(clients) > 1), list(clients), problem)
            self.dropped[index] += 1
            return torch.zeros(len(clients), dtype=torch.bool, device=self.dropped.device)
        for group, message in messages.items():
            rule, names = self.rules[group]
            self.bytes += len(clients) * message_bytes(rule, names, message)
        valid = torch.ones(len(clients), dtype=torch.bool, device=self.dropped.device)
        if healthy is not None:
            valid = valid & healthy
        for message in messages.values():
            for value in message.values():
                valid = valid & value.flatten(1).isfinite().all(1) if value.dim() > 1 else valid & value.isfinite()
        for group, message in messages.items():
            total = self._total.setdefault(group, {})
            for key, value in message.items():
                used = torch.where(valid.view(-1, *[1] * (value.dim() - 1)), value, 0).sum(0)
                total[key] = total[key] + used if key in total else used
        self.dropped[index] += (~valid).long()
        self._reported = self._reported + valid.sum()
        return valid

    def _malformed(self, messages: Mapping[str, State], rows: int) -> str:
        """What is wrong with the form of these messages, or nothing."""
        if set(messages) != set(self.heard):
            return f"it speaks of {sorted(messages)}, expected {sorted(self.heard)}"
        shared = self.shared
        for group, message in messages.items():
            rule, names = self.rules[group]
            others = rule.shapes({k: shared[k] for k in names}) if hasattr(rule, "shapes") else {}
            lacking = set(names) - message.keys()
            if lacking:
                return f"{sorted(lacking)[0]!r} is missing"
            for key, value in message.items():
                expected = (rows, *(shared[key].shape if key in shared else others.get(key, ())))
                if not isinstance(value, Tensor) or not value.is_floating_point():
                    return f"{key!r} is no floating-point tensor"
                if tuple(value.shape) != expected:
                    return f"{key!r} has shape {tuple(value.shape)[1:]}, expected {expected[1:]}"
        keys = {group: message.keys() for group, message in self._total.items()}
        for group, message in messages.items():
            if group in keys and message.keys() != keys[group]:
                return f"it has {sorted(message)}, others had {sorted(keys[group])}"
        return ""

    def close(self) -> None:
        """Ends a round: updates the shared values, unless fewer than the quorum have reported."""
        self.rounds += 1
        if not self.rules:
            return
        if not self._total:
            self.void += 1
            return
        enough = self._reported >= self.quorum
        old = self.shared
        new_values: State = {}
        for group, (rule, names) in self.rules.items():
            before = {k: v.clone() for k, v in self.memory[group].items()}
            # a void round is computed with one report, and then not used: no number leaves the device
            exchange = Exchange(
                self.clients,
                self._reported.clamp_min(1).to(old[names[0]].dtype),
                self.rounds,
                self._prior_gradient,
                self.memory[group],
                old,
                self.seed,
            )
            new = rule.update({k: old[k] for k in names}, self._total.get(group, {}), exchange)
            new_values |= {k: torch.where(enough, new[k], old[k]) for k in names}
            gaps = torch.cat([(new_values[k] - old[k]).flatten() for k in names])
            self.moved[group] = gaps.square().mean().sqrt().to(torch.float32)
            for k, v in exchange.memory.items():  # an optimiser that has not begun remembers zeros
                exchange.memory[k] = torch.where(enough.to(v.device), v, before.get(k, torch.zeros_like(v)))
        self.replace(new_values)  # last: every rule has seen the same old values
        self.void += (~enough).long()

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


def _register(module: nn.Module, name: str, value: Tensor) -> None:
    """Registers a buffer under a dotted name, as torch itself names what lies in nested modules."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_buffer(leaf, value)


def participants(federation: Federation, round: int, seed: int, probability: float, least: int) -> list[int]:
    """Who reports in this round: every client for itself with the same probability (Bernoulli), keyed by its id.

    Where fewer than ``least`` would, everyone draws again (pFedVEM's public code asks for two).

    Raises:
        UserError: if that many practically never report.
    """
    if probability >= 1:
        return list(range(federation.clients))
    for attempt in range(10_000):
        chosen = [j for j, c in enumerate(federation.ids) if uniform(seed, round, c, "reports", attempt) < probability]
        if len(chosen) >= least:
            return chosen
    raise UserError(
        f"with participation {probability} of {federation.clients} clients, {least} practically never report together; "
        "raise --participation"
    )
