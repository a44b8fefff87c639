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

from ..checks import check_whole
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import Inputs, new_examples, unlabelled
from ..evaluation.new_client import fit_new_client
from ..evaluation.response import log_probs, predictions, response
from .network_check import check_ids

if TYPE_CHECKING:
    import pandas as pd

#: examples of a client that was never seen: inputs and targets
Examples = tuple["Tensor | np.ndarray | pd.DataFrame", "Tensor | np.ndarray | Sequence[float]"]


def client_responses(fitted: Fitted, row: int, x: Inputs, draws: int) -> list[Distribution]:
    """The response of a client's own model, piece by piece."""
    noise, parts = fitted.noise([row], draws, "predict") if draws else None, []
    for piece in fitted.pieces(_batch(fitted, x), draws):
        _, sites = fitted.personal_sites([row], piece, draws, noise=noise)
        parts.append(response(sites).fn)
    return parts


def _batch(fitted: Fitted, x: Inputs) -> Batch:
    """Inputs, without targets."""
    batch = unlabelled(fitted.federation, x)
    check_ids(fitted.method.network.networks[0], batch.x)
    return batch


def predicted(fitted: Fitted, row: int, x: Inputs, draws: int) -> Tensor:
    """See :meth:`~hierfl.inference.run.result.Run.predict`."""
    task, units = fitted.federation.task, fitted.federation.units
    return torch.cat([predictions(fn, task, units) for fn in client_responses(fitted, row, x, draws)])


def predicted_log_probs(fitted: Fitted, row: int, x: Inputs, draws: int) -> Tensor:
    """Log probabilities of the classes, (n, C)."""
    return torch.cat([log_probs(fn)[0] for fn in client_responses(fitted, row, x, draws)])


def predicted_new_client(fitted: Fitted, x: Inputs, draws: int, given: Examples | None, rounds: int) -> Tensor:
    """See :meth:`~hierfl.inference.run.result.Run.predict_new_client`."""
    fns = new_client_responses(fitted, x, draws, given, rounds)
    return torch.cat([predictions(fn, fitted.federation.task, fitted.federation.units) for fn in fns])


def new_client_responses(
    fitted: Fitted, x: Inputs, draws: int, given: Examples | None, rounds: int
) -> list[Distribution]:
    """The response of a client that was never seen, piece by piece."""
    check_whole("draws", draws, 0)
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
