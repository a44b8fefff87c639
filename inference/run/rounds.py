"""Which round is the best by validation data, and whether they tell it from the last one.

Rounds are compared by the negative log likelihood of the validation examples, all clients' pooled. The best of many
rounds looks better than it is, so an earlier round counts only where it beats the last by three standard errors of the
difference. They are paired, and over clients: a client's examples share one model, so that their differences do not
vary by themselves, and of a client no more than a sum is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hierfl.plurals import counted

#: standard errors by which an earlier round has to beat the last one
MIN_STANDARD_ERRORS = 3.0
#: clients with validation data, from which on a standard error over clients says something
CLIENTS = 5
#: where there are no sums of single clients
STAY = "validation does not tell rounds apart: what each client's data say of earlier rounds is not known here"


@dataclass(frozen=True)
class Chosen:
    """A round.

    Attributes:
        round: the earlier one that is better than the last by more than chance; else the last one.
        note: what validation says of rounds where that is the last one; empty for an earlier one.
    """

    round: int
    note: str


def held_out_sums(rows: Mapping[str, np.ndarray]) -> Tensor:
    """(J, 2): each client's validation examples, and the sum of their negative log likelihoods."""
    n = np.asarray(rows["n"], dtype=float)
    nll = np.asarray(rows["nll"], dtype=float) if "nll" in rows else np.zeros_like(n)
    return torch.from_numpy(np.stack([n, np.where(n > 0, n * nll, 0.0)], -1))


def chosen_round(held_out: Sequence[tuple[int, Tensor]], last: int) -> Chosen:
    """The best round by validation, or the last one.

    Args:
        held_out: rounds, and :func:`held_out_sums` of each.
        last: the last round.
    """
    sums = {number: values.double().numpy() for number, values in held_out}
    if last not in sums or len(sums) < 2:
        return Chosen(last, STAY if last not in sums else "")
    pooled = {number: _pooled(values) for number, values in sums.items()}
    best = min(pooled, key=lambda number: (pooled[number], -number))
    if best == last:
        return Chosen(last, f"validation prefers no earlier round: the last has the lowest NLL, {pooled[last]:.3f}")
    n = sums[last][:, 0]
    n = n[n > 0]
    between = f"round {best} (NLL {pooled[best]:.3f}) from the last (NLL {pooled[last]:.3f})"
    if len(n) < CLIENTS:
        return Chosen(
            last,
            f"validation does not tell {between}: {counted(len(n), 'client', 'has', 'have')} validation data, "
            f"of {CLIENTS} needed",
        )
    if np.isinf(pooled[last]):
        return Chosen(best, "")
    gaps = (sums[last] - sums[best])[sums[last][:, 0] > 0, 1]
    gap = gaps.sum() / n.sum()
    error = np.sqrt(len(n) / (len(n) - 1) * np.square(gaps - gap * n).sum()) / n.sum()
    if gap > MIN_STANDARD_ERRORS * error:
        return Chosen(best, "")
    many = f"{gap / error:.1f} paired standard errors over {counted(len(n), 'client')}"
    many = f"{many}, and {MIN_STANDARD_ERRORS:.0f} are needed"
    return Chosen(last, f"validation does not tell {between}: they differ by {many}")


def _pooled(sums: np.ndarray) -> float:
    """NLL of all examples; infinite where it is no number."""
    nll = sums[:, 1].sum() / max(1.0, sums[:, 0].sum())
    return float(nll) if np.isfinite(nll) else np.inf
