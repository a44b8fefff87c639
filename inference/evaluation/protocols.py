"""The same fit evaluated with the clients' own test labels, with balanced ones and with shifted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.metrics.classification import classification_rows
from hierfl.metrics.pooling import over_clients
from hierfl.metrics.registry import names_of
from hierfl.ppl.label_shares import LabelShares, log_offset

from ..method.label_shares import balances_classes, has_label_shares
from ..server.rules.label_shares import LabelSharePopulation, population_of
from .fitted import Fitted
from .label_shares import DRAWS, SHARES, at_shares, from_inputs
from .personal import evaluate_personal, pieces
from .response import log_probs, response
from .test_rows import PROTOCOLS, check_protocols, label_counts, under_protocol

#: share of labels that come as in the pooled data, where an offset is put on a global model
FLOOR = 1e-4
#: examples of the global model at a time
PIECE = 500


def evaluate_protocols(
    fitted: Fitted, protocols: Sequence[str] = PROTOCOLS, *, draws: int = 0, seed: int = 0, offset: bool = False,
    chunk: int = 8,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each protocol and kind of prediction, metrics as means over clients.

    A row says ``protocol``; ``predictions``, "pm" of the clients' own models, "pm_draws" the same averaged over draws,
    "gm" of the global model for each client's rows; ``shares``, the label shares that are predicted for, empty for a
    model without; and ``transductive``, whether the test rows' inputs were used to estimate them.

    Args:
        fitted: the state; a classification with test rows.
        protocols: see :mod:`.test_rows`.
        draws: of "pm_draws"; 0 for a fit without.
        seed: of the rows.
        offset: adds rows of the global model with the same offset, log pi_j - log m, as a method with shares has.
        chunk: clients at a time.

    Raises:
        UserError: as :func:`.test_rows.check_protocols`; for an offset without a global model.
    """
    check_protocols(fitted.federation, tuple(protocols))
    if offset and not fitted.method.has_global_model:
        name = fitted.method.name or type(fitted.method).__name__
        raise UserError(f"{name} has no global model that an offset could be put on")
    shares = SHARES if has_label_shares(fitted.method, fitted.shared) else ("",)
    rows = []
    for protocol in protocols:
        tested = replace(fitted, federation=under_protocol(fitted.federation, protocol, seed))
        for kind, number in (("pm", 0), *([("pm_draws", draws)] if draws else [])):
            rows += [row(protocol, kind, which, personal(tested, which, number, chunk)) for which in shares]
        if fitted.method.has_global_model:
            global_model = GlobalModel.from_fit(tested)
            rows.append(row(protocol, "gm", "", global_model.metrics()))
            if offset:
                rows += [row(protocol, "gm", which, global_model.metrics(which)) for which in SHARES]
    return rows


def row(protocol: str, kind: str, shares: str, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """The row of the table."""
    metrics_over_clients = over_clients(metrics, "classification")
    entries = {"protocol": protocol, "predictions": kind, "shares": shares, "transductive": shares == "test"}
    return {**entries, **{name: metrics_over_clients.get(name) for name in names_of("classification")}}


def personal(fitted: Fitted, shares: str, draws: int, chunk: int) -> dict[str, np.ndarray]:
    """Every client's metrics, of its own model for these shares."""
    if shares == "test":
        federation, fixed = fitted.federation, dict[str, Tensor]()
        cost = federation.classes + federation.event_shape.numel()
        for rows in pieces(federation.sizes("test"), chunk, cost):
            batch = federation.batch(rows, "test")
            for name, value in at_shares(fitted, shares, batch, rows, draws, least=0).fixed.items():
                fixed.setdefault(name, value)[:, rows] = value[:, rows]
        fitted = replace(fitted, fixed=fixed)
    elif shares:
        fitted = at_shares(fitted, shares, fitted.federation.template(), [0], draws)
    return evaluate_personal(fitted, "test", chunk, (draws,))[0]


@dataclass(frozen=True)
class GlobalModel:
    """What the global model says of all test rows, and the population of label shares.

    Attributes:
        fitted: the state.
        index: rows of the pool, (N,), sorted.
        log_probabilities: log p(y | x), (N, C).
        population: of label shares, learned from the clients' counts.
        neutral: shares for which the global model predicts, (C,).
    """

    fitted: Fitted
    index: Tensor
    log_probabilities: Tensor
    population: LabelShares
    neutral: Tensor

    @classmethod
    def from_fit(cls, fitted: Fitted) -> GlobalModel:
        """Asks it once of each row."""
        federation = fitted.federation
        index = torch.unique(torch.cat(list(federation.test)))
        counts = label_counts(federation)
        population = population_of(LabelSharePopulation("shares", "class_counts"), counts)
        equal = torch.full_like(population.pooled, 1 / federation.classes)
        neutral = equal if balances_classes(fitted.method) else population.pooled
        log_p = torch.cat([*global_log_probs(fitted, index)]).double()
        return cls(fitted, index, log_p, population, neutral)

    def metrics(self, shares: str = "") -> dict[str, np.ndarray]:
        """Every client's metrics, of the model as it is or with an offset for label shares."""
        federation = self.fitted.federation
        pi = self.shares(shares) if shares else None
        parts: list[dict[str, Tensor]] = []
        for j, index in enumerate(federation.test):
            log_p = self.of_rows(index)
            if pi is not None and len(index):
                log_p = self.at(log_p, pi[..., j, :])
            parts.append(classification_rows(log_p[None], federation.y[index][None], None))
        return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}

    def of_rows(self, index: Tensor) -> Tensor:
        """log p(y | x) of rows of the pool, of any shape."""
        return self.log_probabilities[torch.searchsorted(self.index, index)]

    def shares(self, shares: str) -> Tensor:
        """pi_j, (J, C), or draws of it, (K, J, C)."""
        federation = self.fitted.federation
        if shares == "test":
            everyone = range(federation.clients)
            index, mask = federation.indices("test").padded(everyone)
            noise = self.fitted.noise(everyone, 1, "shares")
            return from_inputs(self.population, self.of_rows(index), self.neutral, mask, noise, DRAWS)
        if shares == "own":
            return self.population.given(label_counts(federation)).mean
        pi = self.population.pooled if shares == "pooled" else torch.full_like(self.neutral, 1 / len(self.neutral))
        return pi.expand(federation.clients, -1)

    def at(self, log_p: Tensor, pi: Tensor) -> Tensor:
        """log p(y | x) (n, C) for shares (C,), averaged over draws of them (K, C)."""
        moved = (log_p + log_offset(pi, self.neutral, FLOOR).unsqueeze(-2)).log_softmax(-1)
        return moved if pi.dim() == 1 else moved.logsumexp(0) - float(np.log(len(pi)))


def global_log_probs(fitted: Fitted, index: Tensor) -> Iterator[Tensor]:
    """What the global model says of rows of the pool, at the prior's mean of what is personal: pieces (n, C)."""
    federation = fitted.federation
    for piece in index.split(PIECE):
        x, y = federation.examples(piece[None])
        batch = Batch(x, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
        yield log_probs(response(fitted.global_sites(batch)).fn)[0]
