"""The population of label shares, from sums over clients of functions of their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.ppl.label_shares import LabelShares

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, not_negative, row_count
from ...state import State
from .base import AggregationContext

#: standard deviation of log beta's normal prior: a concentration of which clients say nothing stays near 1
BETA_SCALE = 2.0
#: EM's step of log beta is taken twice as long: its own is about half of the way there
OVER_RELAXED = 2.0
#: log beta stays within these bounds
LOG_BETA = 5.0
#: steps of EM where all counts are in one place
ROUNDS = 100


@dataclass(frozen=True)
class LabelSharePopulation:
    """EM on kappa and beta of :class:`hierfl.ppl.label_shares.LabelShares`, and the pooled shares m.

    The shared values are NAME.log_kappa (C,), NAME.log_beta (1,) and NAME.log_pooled (C,). A client sends 2 C + 2
    numbers: p(|A_j| = a | n_j) for each a, its counts, and of log beta two sums whose ratio is Minka's fixed point,

        up = sum_{c seen} alpha_c (psi(n_c + alpha_c) - psi(alpha_c)),    down = E[s_a (psi(N_j + s_a) - psi(s_a))]

    kappa has a Dirichlet prior of one client in all, the pooled shares one of one example, and log beta ~ N(0, 2^2).
    Where only some clients report, what they say replaces as large a part of what was known.

    Args:
        name: NAME.
        counts: the personal value with a client's examples of each class, (C,).
        fewer: whether counts may be of fewer rows than a client declares elsewhere: some are held out.
        fixed: whether kappa and beta stay where they begin; a client sends its counts alone then.
    """

    name: str
    counts: str
    fewer: bool = False
    fixed: bool = False
    sends_gradients: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the shared values."""
        return f"{self.name}.log_kappa", f"{self.name}.log_beta", f"{self.name}.log_pooled"

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Probabilities, counts, and two sums that are not below zero."""
        kappa = old[f"{self.name}.log_kappa"]
        shape, dtype = tuple(kappa.shape), kappa.dtype
        counts = {"counts": Field(shape, dtype, not_negative) if self.fewer else row_count(old, shape)}
        if self.fixed:
            return counts
        return {
            "sizes": Field(shape, dtype, lambda p: (p >= 0) & (p <= 1 + 1e-6)),
            **counts,
            "up": Field((1,), dtype, not_negative),
            "down": Field((1,), dtype, not_negative),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's label shares, counts of its labels, and the two sums over them that beta is updated by."""
        given = self.population(chunk.shared, chunk.values[self.counts].squeeze(1))
        like = chunk.shared[f"{self.name}.log_kappa"]
        return {key: value.to(like) for key, value in self.sums(given).items()}

    def sums(self, given: LabelShares) -> State:
        """What each row sends, given its counts."""
        alpha, s, n = given.alpha, given.concentration, given.n
        if self.fixed:
            return {"counts": n}
        total, psi = n.sum(-1, keepdim=True), torch.digamma
        up = torch.where(given.observed, alpha * (psi(n + alpha) - psi(alpha)), 0.0).sum(-1, keepdim=True)
        down = (given.sizes_given * s * (psi(total + s) - psi(s))).sum(-1, keepdim=True)
        return {"sizes": given.sizes_given, "counts": n, "up": up.clamp_min(0), "down": down.clamp_min(0)}

    def population(self, shared: Mapping[str, Tensor], counts: Tensor | None = None) -> LabelShares:
        """What shared values say, and given counts."""
        kappa, beta, pooled = (shared[name] for name in self.names)
        return LabelShares(kappa, beta, pooled, counts)

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """One step of EM; of a fixed population the pooled shares alone."""
        kept, classes = context.rule_state, total["counts"].numel()
        means = {key: value.double() / context.reported for key, value in total.items()}
        share = context.reported / context.num_clients
        for key, value in means.items():
            kept[key] = value if key not in kept else kept[key] + share * (value - kept[key])
        pooled = kept["counts"] * context.num_clients + 1 / classes
        log_pooled = (pooled / pooled.sum()).log()
        if self.fixed:
            pooled_name = self.names[-1]
            return {**old, pooled_name: log_pooled.to(old[pooled_name])}
        kappa = kept["sizes"] * context.num_clients + 1 / classes
        up, down = (kept[key] * context.num_clients for key in ("up", "down"))
        log_beta = old[f"{self.name}.log_beta"].double()
        log_beta = (log_beta + OVER_RELAXED * step(up, down, log_beta)).clamp(-LOG_BETA, LOG_BETA)
        values = {
            "log_kappa": (kappa / kappa.sum()).log(),
            "log_beta": log_beta,
            "log_pooled": log_pooled,
        }
        return {name: values[name.removeprefix(f"{self.name}.")].to(value) for name, value in old.items()}


def population_of(rule: LabelSharePopulation, counts: Tensor, rounds: int = ROUNDS) -> LabelShares:
    """The population of clients whose counts (J, C) are all here: the rule's update, so many times."""
    clients, classes = counts.shape
    equal = counts.new_full((classes,), 1 / classes).log()
    shared = dict(zip(rule.names, (equal, equal.new_zeros(1), equal), strict=True))
    context = AggregationContext(clients, torch.tensor(clients), 1, lambda names: {})
    for _ in range(rounds):
        total = {key: value.sum(0) for key, value in rule.sums(rule.population(shared, counts)).items()}
        shared = rule.update(shared, total, context)
    return rule.population(shared)


def step(up: Tensor, down: Tensor, log_beta: Tensor) -> Tensor:
    """The maximum of up x - down exp(x) - (log_beta + x)^2 / (2 BETA_SCALE^2) over x: EM's step, by Newton's method."""
    x, precision = torch.zeros_like(log_beta), BETA_SCALE**-2
    for _ in range(30):
        curve = down * x.exp()
        x = x + ((up - curve - precision * (log_beta + x)) / (curve + precision)).clamp(-1, 1)
    return x
