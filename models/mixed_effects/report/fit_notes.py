"""What a reader has to know of a fit as a whole: whether it arrived, what its intervals rest on, what was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: largest distance of a fit from its maximum, in standard errors; and the distance beyond which no maximum is near
MOST_TO_GO, LARGEST_STEP = 0.005, 1e6
#: independent draws that the explored points of a population should be worth
LEAST_WORTH = 100


def fit_notes(numbers: Mapping[str, Any]) -> list[str]:
    """A sentence for each thing to know; none of a fit that went well.

    Args:
        numbers: of a fit, as :func:`.summary.effects_table` or summary.json has them: off_maximum, effective_points,
            population_draws, laplace, exact; residual_rows, residual_chi_squared, residual_p; dropped, a sentence for
            each fixed column that was; and codes, one for each column of a frame with a number that may be a missing
            value.
    """
    lines = [*(numbers.get("dropped") or ()), *(numbers.get("codes") or ())]
    off = numbers.get("off_maximum") or 0
    if numbers.get("exact"):
        lines.append(
            "the formula reproduces every row: the residual's standard deviation goes to zero, the likelihood has no "
            "maximum, and there are no standard errors and tests"
        )
    elif off > LARGEST_STEP:
        lines.append("the likelihood is flat or bent upwards here, and no maximum: more rounds, or a smaller model")
    elif off > MOST_TO_GO:
        lines.append(f"not at the maximum yet: {off:.2g} standard errors to go; more rounds")
    worth = numbers.get("effective_points")
    if worth == 0:
        lines.append(
            "the fit ended before it made its draws, and what rests on them has no interval: more rounds, a larger "
            "tol, or a smaller model"
        )
    elif worth is not None and worth < LEAST_WORTH:
        lines.append(
            f"what is known of the population rests on {worth:.0f} draws' worth of points: take it for a sketch"
        )
    elif numbers.get("population_draws") == 0:
        lines.append("draws=0: standard deviations and predictions have no intervals; draws=1000 makes them")
    if unknown := numbers.get("profile_unknown"):
        which = "an end of a profile interval was" if unknown == 1 else f"{unknown:.0f} ends of profile intervals were"
        lines.append(f"{which} not found, for want of rounds or of an end")
    if numbers.get("laplace"):
        # Beside crossed groups or curves, clients' own effects may be by quadrature: lme4 has no such fit.
        shared = numbers.get("crossed_groups") or numbers.get("smooth_effects")
        which = "effects that clients share" if shared else "random effects"
        lines.append(
            f"{which} are integrated out by Laplace's approximation{'' if shared else ' (nAGQ=1 of lme4)'}: where "
            "groups have few rows, of 0 or 1 most of all, their standard deviations come out too small"
        )
    if (rows := numbers.get("residual_rows")) is not None:
        lines.append(_of_residuals(rows, numbers))
    return lines


def _of_residuals(rows: float, numbers: Mapping[str, Any]) -> str:
    """The histogram of quantile residuals in words."""
    if not rows:
        return "no rows are counted by their quantile residuals: sites with small cells send none"
    everyone = numbers.get("rows") or rows
    counted_rows = f"{rows:,.0f} rows"
    if rows < everyone:
        counted_rows = f"{rows:,.0f} of {everyone:,.0f} rows (sites with small cells send none)"
    return (
        f"quantile residuals of {counted_rows}, uniform where the model holds: chi-squared "
        f"{numbers['residual_chi_squared']:.1f} on 9 df, p = {numbers['residual_p']:.2g}; effects were estimated from "
        "the same rows, so that p errs upwards"
    )
