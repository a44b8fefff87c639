"""What a statistician reads of the population, in the table's units: coefficients, deviations, correlations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.data.formula.grouping import Grouping
from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError

from .equations import MixedModel


def effects_of(method: MixedModel, values: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
    """Names, and values (D, m), of what a statistician reads, in the table's units.

    Args:
        method: whose.
        values: shared values by their short names, {name: (D, *shape)}.
    """
    design = method.network
    beta, family = users_beta(method, values["beta"]), method.response_family
    names, coefficients = family.coefficients(design.fixed, beta, values)
    labels, parts = list(names), [coefficients]
    for level, covariance in method.covariances.items():
        grouping = method.groupings[level]
        root = grouping.to_users(beta) @ covariance.matrix(values[level])
        sd = root.norm(dim=-1)
        labels += [f"sd({name})" for name in grouping.labels]
        parts.append(sd)
        for i, k in covariance.pairs:
            labels.append(f"corr({grouping.names[i]}, {grouping.labels[k]})")
            parts.append(((root[:, i] * root[:, k]).sum(-1) / (sd[:, i] * sd[:, k]))[:, None])
    for name, own in family.own(design.fixed, beta, values).items():
        labels.append(name)
        parts.append(own[:, None])
    return labels, torch.cat([part.expand(len(beta), part.shape[-1]) for part in parts], -1)


def check_names(method: MixedModel, values: Mapping[str, Tensor]) -> None:
    """Refuses a column whose coefficient would be called like another number of the model.

    Args:
        method, values: as of :func:`effects_of`; values of any numbers.

    Raises:
        UserError: for the first.
    """
    labels, _ = effects_of(method, values)
    twice = [name for name, times in Counter(labels).items() if times > 1]
    if twice and twice[0] in method.network.fixed:
        raise UserError(
            f"{twice[0]!r} is a number of a {method.network.family} response, and a column has the same name: rename "
            f"the column, as in df.rename(columns={{{twice[0]!r}: {'my_' + twice[0]!r}}})"
        )


def in_table_units(grouping: Grouping, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of random effects (..., q) of the table's columns as they are.

    Args:
        grouping: whose.
        mean, root: in the design's units, (..., q) and a root of the covariance (..., q, q).
    """
    turn = grouping.to_users(mean)
    return mean @ turn.T, (turn @ root).norm(dim=-1)


def users_beta(method: MixedModel, beta: Tensor) -> Tensor:
    """Coefficients (..., p) of the table's columns as they are."""
    design = method.network
    turn = design.fixed_units.to_users(design.fixed, (len(design.fixed),), beta)
    return beta @ turn.T + beta.new_tensor([design.offset if name in INTERCEPT else 0.0 for name in design.fixed])
