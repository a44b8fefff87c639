"""What a fitted method says of new inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from hierfl.data.batch import Batch
from hierfl.errors import UserError

from ..calibration.calibrate import Calibration
from ..checks import check_draws
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import Inputs, new_examples, unlabelled
from ..evaluation.label_shares import at_shares
from ..evaluation.new_client import fit_new_client
from ..evaluation.response import log_probs, predictions, response
from .network_check import check_ids

if TYPE_CHECKING:
    import pandas as pd

#: examples of a client that was never seen: inputs and targets
Examples = tuple["Tensor | np.ndarray | pd.DataFrame", "Tensor | np.ndarray | Sequence[float]"]


def client_responses(fitted: Fitted, row: int, x: Inputs, draws: int, shares: str = "") -> list[Distribution]:
    """The response of a client's own model, piece by piece; for the label shares that are asked for."""
    batch = _batch(fitted, x)
    if shares:
        fitted = at_shares(fitted, shares, batch, [row], draws)
    noise, parts = fitted.noise([row], draws, "predict") if draws else None, []
    for piece in fitted.pieces(batch, draws):
        _, sites = fitted.personal_sites([row], piece, draws, noise=noise)
        parts.append(response(sites).fn)
    return parts


def _batch(fitted: Fitted, x: Inputs) -> Batch:
    """Inputs, without targets."""
    batch = unlabelled(fitted.federation, x)
    check_ids(fitted.method.network.networks[0], batch.x)
    return batch


def predicted(
    fitted: Fitted, row: int, x: Inputs, draws: int, shares: str = "", tempered: Calibration | None = None
) -> Tensor:
    """See :meth:`~hierfl.inference.run.result.Run.predict`; at the temperature of a calibration, where there is one."""
    task, units = fitted.federation.task, fitted.federation.units
    if tempered is None:
        return torch.cat([predictions(fn, task, units) for fn in client_responses(fitted, row, x, draws, shares)])
    if shares not in ("", "own"):
        raise UserError(f"the temperature was found with clients' own shares: leave out tempered, or shares={shares}")
    return tempered.tempered(predicted_log_probs(fitted, row, x, draws), draws).exp()


def predicted_log_probs(fitted: Fitted, row: int, x: Inputs, draws: int, shares: str = "") -> Tensor:
    """Log probabilities of the classes, (n, C)."""
    return torch.cat([log_probs(fn)[0] for fn in client_responses(fitted, row, x, draws, shares)])


def predicted_new_client(fitted: Fitted, x: Inputs, draws: int, given: Examples | None, rounds: int) -> Tensor:
    """See :meth:`~hierfl.inference.run.result.Run.predict_new_client`."""
    fns = new_client_responses(fitted, x, draws, given, rounds)
    return torch.cat([predictions(fn, fitted.federation.task, fitted.federation.units) for fn in fns])


def new_client_responses(
    fitted: Fitted, x: Inputs, draws: int, given: Examples | None, rounds: int
) -> list[Distribution]:
    """The response of a client that was never seen, piece by piece."""
    check_draws(draws)
    if not isinstance(rounds, int) or rounds < 0:
        raise UserError(f"rounds must be a whole number of at least 0, not {rounds!r}")
    if given is not None:
        if not isinstance(given, tuple) or len(given) != 2:
            raise UserError("given is a pair of a new client's examples: (inputs, targets)")
        examples = new_examples(fitted.federation, *given)
        check_ids(fitted.method.network.networks[0], examples[0])
        return client_responses(fit_new_client(fitted, *examples, rounds), 0, x, draws)
    noise = fitted.population_noise(1, draws)
    pieces = fitted.pieces(_batch(fitted, x), draws)
    return [response(fitted.global_sites(piece, draws, noise)).fn for piece in pieces]
