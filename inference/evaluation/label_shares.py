"""Predictions for other label shares than those of a client's training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError, unknown
from hierfl.ppl.label_shares import LabelShares
from hierfl.ppl.unlabelled_shares import shares_given_inputs
from hierfl.rng import ClientNoise

from ..method.label_shares import HasLabelShares, has_label_shares
from .fitted import Fitted
from .response import log_probs, response

#: shares of a client: given its training labels, given the inputs that are predicted, all equal, or all clients'
SHARES = ("own", "test", "uniform", "pooled")
#: draws of shares given inputs, where predictions are at the posterior mean of everything else
DRAWS = 100
#: part of the labels that come as in the population where shares are estimated: classes that a few inputs leave out
#: wrongly cost no more than its logarithm
LEFT_OUT = 0.01
#: inputs from which shares can be estimated: one alone says nothing beyond its own label
LEAST_INPUTS = 2


def check_shares(fitted: Fitted, shares: str) -> HasLabelShares:
    """The method, where it can predict for these shares.

    Raises:
        UserError: for shares that there are not, a method without any, or a fit that they have not entered.
    """
    if shares not in SHARES:
        raise unknown("shares", shares, SHARES)
    if not has_label_shares(fitted.method):
        name = fitted.method.name or type(fitted.method).__name__
        raise UserError(f"{name} has no label shares, which shares={shares} would set; pfedhb has")
    if shares != "own" and not has_label_shares(fitted.method, fitted.shared):
        raise UserError(f"label shares are not in this model (shares=auto): shares={shares} would change nothing")
    return cast(HasLabelShares, fitted.method)


def at_shares(
    fitted: Fitted, shares: str, batch: Batch, rows: Sequence[int], draws: int, least: int = LEAST_INPUTS
) -> Fitted:
    """The same fit, of which some clients predict for other label shares.

    Args:
        fitted: the state.
        shares: "own" of a client's training labels; "test", estimated from the batch's inputs with the population as
            prior; "uniform"; or "pooled", those of all clients' training labels together.
        batch: what is predicted; its labels are not looked at.
        rows: whose inputs these are.
        draws: of the predictions, 0 for the posterior mean.
        least: inputs of a client that "test" asks for.

    Raises:
        UserError: as :func:`check_shares`; for fewer inputs with "test".
    """
    method = check_shares(fitted, shares)
    if shares == "own":
        return fitted
    shared, clients = fitted.shared, fitted.federation.clients
    neutral = method.neutral_shares(shared)
    if shares == "test":
        fewest, row = min((int(n), row) for n, row in zip(batch.present(), rows, strict=True))
        if fewest < least:
            raise UserError(
                f"shares=test is estimated from at least {least} inputs of a client together, not {fewest}, of client "
                f"{fitted.federation.ids[row]!r}: own, uniform and pooled take a single one"
            )
        plain = _fixed(fitted, method, neutral.expand(clients, -1))
        pieces = [plain.personal_sites(rows, piece, 0)[1] for piece in plain.pieces(batch, 0)]
        log_p = torch.cat([log_probs(response(sites).fn) for sites in pieces], 1)
        population, noise = method.share_population(shared), fitted.noise(rows, 1, "shares")
        drawn = from_inputs(population, log_p, neutral, batch.mask, noise, draws or DRAWS)
        pi = neutral.expand(draws or DRAWS, clients, -1).clone()
        pi[:, list(rows)] = drawn.to(pi)
        return _fixed(fitted, method, pi)
    equal = torch.full_like(neutral, 1 / len(neutral))
    pi = equal if shares == "uniform" else method.share_population(shared).pooled.to(neutral)
    return _fixed(fitted, method, pi.expand(clients, -1))


def from_inputs(
    population: LabelShares, log_p: Tensor, neutral: Tensor, mask: Tensor | None, noise: ClientNoise, draws: int
) -> Tensor:
    """Draws of label shares given inputs, (K, S, C), a part of which is as in the population.

    Args:
        population: of label shares.
        log_p: log p(y | x) for neutral shares, (S, n, C).
        neutral: those shares, (C,).
        mask: (S, n), False where a row is padded; None where no row is.
        noise: of these clients.
        draws: K.
    """
    drawn = shares_given_inputs(population, log_p - neutral.log(), mask, noise, draws)
    return (1 - LEFT_OUT) * drawn + LEFT_OUT * population.pooled.double()


def _fixed(fitted: Fitted, method: HasLabelShares, pi: Tensor) -> Fitted:
    return replace(fitted, fixed=method.at_shares(fitted.shared, pi))
