"""What must not change a prediction: other examples beside it, its own target, how many examples a client has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.ppl.restrict import Site

from ..evaluation.fitted import Fitted
from ..evaluation.response import response
from ..method.base import Method
from ..method.capabilities import has_global_moments
from ..objective.sites import guide_latents, model_sites
from .probe import PARTICLES, Probe, joined, other_targets, same_numbers
from .supports import kind_of

#: from a row's batch to the site that is predicted
Predict = Callable[[Batch], Site]


def check_predictions(method: Method, probe: Probe) -> None:
    """Refuses predictions, a client's own or the population's, that depend on more than an example and the values."""
    _check(probe, lambda batch: _personal(method, probe, batch), "a client's own model")
    if not method.has_global_model:
        return
    moments = has_global_moments(method)
    fitted, draws = _begun(method, probe), 0 if moments else min(PARTICLES, method.global_draws)

    def of_population(batch: Batch) -> Site:
        if moments:
            return fitted.global_moments(batch)
        return response(fitted.global_sites(batch, draws))

    what, plain = _check(probe, of_population, "the global model", not draws, "; or say has_global_model = False")
    batch = probe.row(0, probe.counts[0])
    if not bool(plain.isfinite().all()) and bool(_log_probs(_personal(method, probe, batch), batch.y).isfinite().all()):
        raise UserError(
            f"{what} is not finite: a latent's prior has no mean (a Cauchy, say); set global_draws to a number of "
            "draws, or has_global_model = False"
        )
    first, two = (_log_probs(of_population(replace(batch, n=batch.n.new_full((1,), n))), batch.y) for n in (1.0, 7.0))
    if not same_numbers(first, two):
        raise UserError(
            f"{what} depends on batch.n, which is 1 there, since the client is not known: leave batch.n out of what "
            "is predicted, or say has_global_model = False"
        )


def check_response(method: Method, probe: Probe) -> None:
    """Refuses a response site that observes anything but batch.y: its predictions are scored by batch.y."""
    batch = probe.row(0, probe.counts[0])
    site = _personal(method, probe, batch)
    if probe.federation.task == "classification" and not _of_classes(site.fn, probe.federation.classes):
        raise UserError(
            f"site {site.name!r} is {kind_of(site.fn).__name__}, and labels are of classes: write "
            f"Categorical(logits=...) with {probe.federation.classes} of them in the last dimension, or "
            "network.likelihood(...)"
        )
    if site.fn.event_shape:
        raise UserError(
            f"site {site.name!r} has event shape {tuple(site.fn.event_shape)}, and a response is one number for each "
            "example, batch.y (S, n): take the network's output [..., 0], and no .to_event(...)"
        )
    if site.value.shape != batch.y.shape or not bool((site.value == batch.y).all()):
        raise UserError(
            f"site {site.name!r} observes other values than batch.y, by which its predictions are scored: write "
            "obs=batch.y, and transform responses before the federation is made"
        )


def _of_classes(fn: Any, classes: int) -> bool:
    """Whether a response's distribution says a probability of each class."""
    logits = getattr(fn, "log_probs", None)
    logits = getattr(fn, "logits", None) if logits is None else logits
    return isinstance(logits, Tensor) and logits.dim() > 2 and logits.shape[-1] == classes


def _check(probe: Probe, predict: Predict, whose: str, first: bool = True, remedy: str = "") -> tuple[str, Tensor]:
    """Refuses what a prediction may not depend on.

    Args:
        probe: whose first row is predicted.
        predict: how.
        whose: prediction it is, for a message.
        first: whether other examples come before it, or behind: draws of single examples go by their position.
        remedy: what else may be done.

    Returns:
        What it is, for a message, and log probabilities of the first row's examples, (K, 1, n).
    """
    examples = probe.counts[0]
    batch, more = probe.row(0, examples), probe.row(1, probe.counts[1])
    site = predict(batch)
    what, plain = f"what {whose} says of an example in site {site.name!r}", _log_probs(site, batch.y)
    others = replace(joined(more, batch) if first else joined(batch, more), n=batch.n)
    beside = _log_probs(predict(others), others.y)
    if not same_numbers(plain, beside[..., -examples:] if first else beside[..., :examples]):
        raise UserError(
            f"{what} depends on the other examples of its batch (their number, or a sum or mean over them), which are "
            f"others in training and in a prediction: use what belongs to the example alone{remedy}"
        )
    changed = replace(batch, y=other_targets(probe.batch)[:1, :examples])
    if not same_numbers(plain, _log_probs(predict(changed), batch.y)):
        raise UserError(f"{what} depends on batch.y, which is not known when it is predicted: use it as obs= alone")
    return what, plain


def _log_probs(site: Site, y: Tensor) -> Tensor:
    log_p: Tensor = site.fn.log_prob(y)
    return log_p


def _personal(method: Method, probe: Probe, batch: Batch) -> Site:
    """The first row's own prediction, at the centre of its guide."""
    values = probe.values_of([0])
    if method.conditions:
        batch = replace(batch, given=probe.given(0))
    with pyro.validation_enabled(False), torch.no_grad():
        return response(model_sites(method, batch, values, guide_latents(method, batch, values, None)))


def _begun(method: Method, probe: Probe) -> Fitted:
    """What predicts for the population before the first round, with the probe's values."""
    few = probe.federation.select(sorted(set(probe.clients)))
    shared = {k: probe.values[f"broadcast.{k}"] for k in probe.shared}
    personal = {k: probe.values[k][: few.clients, 0] for k in probe.personal}
    return Fitted(method, few, method.prediction_params(shared), personal, {}, dict(probe.personal), 0)
