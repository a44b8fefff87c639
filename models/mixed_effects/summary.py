"""What was estimated, with standard errors from the curvature of the marginal log likelihood."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hierfl.inference.state import State
from hierfl.ppl.restrict import Restrict

from .model import SD_FLOOR, MixedModel
from .quadrature import pass_marginal, passes, total_marginal

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: a standard deviation is zero where the log likelihood there is lower by no more than this
ZERO_SD_TOLERANCE = 1e-3
#: a correlation beyond this is at its bound
CORRELATION_BOUND = 0.999


class Peak(NamedTuple):
    """The marginal log likelihood at the estimates, and what a statistician reads of them.

    Attributes:
        height: its value, ().
        slope: its gradient in the k shared numbers, (k,).
        curvature: minus its second derivatives, (k, k).
        at_bound: its value with one of the q standard deviations at its lower bound, (q,).
        labels, estimates: names and values of the m effects.
        jacobian: of the effects in the shared numbers, (m, k).
    """

    height: Tensor
    slope: Tensor
    curvature: Tensor
    at_bound: Tensor
    labels: list[str]
    estimates: list[Tensor]
    jacobian: Tensor


def effects_table(fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
    """What was estimated, with standard errors.

    Returns:
        A row for each fixed effect, standard deviation and correlation: name, estimate, standard error (NaN, with a
        note, for what is held or is at its bound). And two numbers: marginal_log_likelihood, and off_maximum, the
        length in standard errors of the Newton step that is still to go.
    """
    import pandas as pd

    peak = _peak(fitted)
    free = _not_at_zero(fitted, peak)
    index = free.nonzero().flatten()
    inverse, definite = _inverse(peak.curvature, index)
    variance = ((peak.jacobian @ inverse) * peak.jacobian).sum(1)
    notes = _notes(peak, free, definite)
    known = torch.tensor([not note for note in notes], device=variance.device)
    errors = torch.where(known, variance.clamp_min(0).sqrt(), torch.nan)
    rest = peak.slope[index]
    off = float((rest @ inverse[index][:, index] @ rest).sqrt()) if definite else float("nan")
    table = pd.DataFrame(
        {
            "effect": peak.labels,
            "estimate": [float(v.detach()) for v in peak.estimates],
            "standard_error": errors.cpu().numpy(),
            "note": notes,
        }
    )
    return table, {"marginal_log_likelihood": float(peak.height), "off_maximum": off}


def marginal_terms(fitted: Fitted) -> State:
    """The marginal log likelihood of the clients that are here, at the estimates: all that a table of effects needs.

    Returns:
        height (), slope (k,), curvature (k, k), minus the second derivatives in the k shared numbers; at_bound (q,),
        the height with one of the q standard deviations at its lower bound.
    """
    here, shapes = _numbers(fitted)
    height, slope, curvature = here.new_zeros(()), torch.zeros_like(here), here.new_zeros((len(here), len(here)))
    with torch.enable_grad():
        theta = here.clone().requires_grad_()
        for clients in passes(fitted):  # (one pass's derivatives are let go before the next one's)
            part = pass_marginal(fitted, clients, _as_state(theta, shapes))
            (one,) = torch.autograd.grad(part, theta, create_graph=True)
            curvature -= torch.stack([torch.autograd.grad(g, theta, retain_graph=True)[0] for g in one])
            height, slope = height + part.detach(), slope + one.detach()
            del part, one
    at_bound = []
    for place, bound in _bounds(fitted):
        lower = here.clone()
        lower[place] = bound
        with torch.no_grad():
            at_bound.append(total_marginal(fitted, _as_state(lower, shapes)))
    found = torch.stack(at_bound) if at_bound else here.new_zeros(0)
    return {"height": height, "slope": slope, "curvature": curvature, "at_bound": found}


def _numbers(fitted: Fitted) -> tuple[Tensor, State]:
    """The k shared numbers in a row, (k,), and the values that they are."""
    shapes = {k: v for k, v in fitted.shared.items() if k.startswith("effects.")}
    return torch.cat([value.flatten() for value in shapes.values()]), shapes


def _bounds(fitted: Fitted) -> list[tuple[int, Tensor]]:
    """Where among the k numbers the logarithms of standard deviations are, and the lower bound of each."""
    method, (here, shapes) = fitted.method, _numbers(fitted)
    assert isinstance(method, MixedModel)
    names = list(shapes)
    if "effects.log_sd" not in names:
        return []
    first = sum(shapes[k].numel() for k in names[: names.index("effects.log_sd")])
    return [(first + k, bound) for k, bound in enumerate((SD_FLOOR * method.first_sd()).log().to(here))]


def _as_state(theta: Tensor, shapes: Mapping[str, Tensor]) -> State:
    """The shared values that the numbers theta (k,) stand for."""
    parts = theta.split([value.numel() for value in shapes.values()])
    return {k: part.view_as(value) for (k, value), part in zip(shapes.items(), parts, strict=True)}


def _peak(fitted: Fitted) -> Peak:
    """See :class:`Peak`."""
    method, (here, shapes), sums = fitted.method, _numbers(fitted), fitted.summary_sums
    assert isinstance(method, MixedModel)
    with torch.enable_grad():
        theta = here.clone().requires_grad_()
        labels, wanted = _named_effects(method, {**fitted.shared, **_as_state(theta, shapes)})
        jacobian = torch.stack([_gradient(value, theta) for value in wanted])
    return Peak(sums["height"], sums["slope"], sums["curvature"], sums["at_bound"], labels, wanted, jacobian)


def _gradient(value: Tensor, theta: Tensor) -> Tensor:
    found = torch.autograd.grad(value, theta, retain_graph=True, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros_like(theta) if found is None else found


def _not_at_zero(fitted: Fitted, peak: Peak) -> Tensor:
    """Which of the numbers are no standard deviation at its lower bound, (k,).

    Near zero the slope of log sd says nothing: the question is whether zero is as likely.
    """
    free = torch.ones_like(peak.slope, dtype=torch.bool)
    for (place, _), height in zip(_bounds(fitted), peak.at_bound, strict=True):
        free[place] = bool(height < peak.height - ZERO_SD_TOLERANCE)
    return free


def _inverse(curvature: Tensor, index: Tensor) -> tuple[Tensor, bool]:
    """The inverse (k, k) among the numbers of ``index``, 0 elsewhere; and whether there is one."""
    kept = curvature[index][:, index]
    scale = kept.diagonal().clamp_min(torch.finfo(kept.dtype).tiny).sqrt()
    inverse = torch.zeros_like(curvature)
    definite = bool((torch.linalg.eigvalsh(kept / (scale[:, None] * scale)) > 1e-10).all())
    if definite:
        inverse[index[:, None], index] = torch.linalg.inv(kept / (scale[:, None] * scale)) / (scale[:, None] * scale)
    return inverse, definite


def _notes(peak: Peak, free: Tensor, definite: bool) -> list[str]:
    """Why an effect has no standard error; empty where it has one."""
    bounded, still = peak.jacobian[:, ~free].abs().sum(1) > 0, peak.jacobian.abs().sum(1) == 0
    notes = []
    for name, value, at_bound, held in zip(peak.labels, peak.estimates, bounded.tolist(), still.tolist(), strict=True):
        edge = name.startswith("corr(") and abs(float(value.detach())) > CORRELATION_BOUND
        note = "at its lower bound" if at_bound else "held" if held else "at its bound" if edge else ""
        notes.append(note or ("" if definite else "not identified"))
    return notes


def _named_effects(method: MixedModel, values: State) -> tuple[list[str], list[Tensor]]:
    """Names and values of what a statistician reads: fixed effects, standard deviations, correlations."""
    design = method.network
    with Restrict(values):
        beta, root = method.value("beta"), method.spread()
        residual = None if design.family != "gaussian" or design.known else method.noise(None)
    sd = root.norm(dim=-1)
    labels, wanted = list(design.fixed), list(beta)
    labels += [f"sd({name})" for name in design.random]
    wanted += list(sd)
    if method.settings.covariance == "full":
        for (i, one), (k, other) in itertools.combinations(enumerate(design.random), 2):
            labels.append(f"corr({one}, {other})")
            wanted.append((root[i] * root[k]).sum() / (sd[i] * sd[k]))
    if residual is not None:
        labels.append("sd(residual)")
        wanted.append(residual.squeeze())
    return labels, wanted
