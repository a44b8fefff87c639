"""What a statistician reads of the population, in the table's units: coefficients, deviations, correlations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.data.formula.design import INTERCEPT

from .model import MixedModel


def effects_of(method: MixedModel, values: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
    """Names, and values (D, m), of what a statistician reads, in the table's units.

    Args:
        method: whose.
        values: shared values by their short names, {name: (D, *shape)}.
    """
    design, covariance = method.network, method.covariance
    beta, family = users_beta(method, values["beta"]), method.response_family
    turn = design.random_units.to_users(design.random, covariance.blocks, values["beta"])
    root = turn @ covariance.matrix(values["root"])
    sd = root.norm(dim=-1)
    names, coefficients = family.coefficients(design.fixed, beta, values)
    labels, parts = list(names), [coefficients, sd]
    labels += [f"sd({name})" for name in design.random]
    for i, k in covariance.pairs:
        labels.append(f"corr({design.random[i]}, {design.random[k]})")
        parts.append(((root[:, i] * root[:, k]).sum(-1) / (sd[:, i] * sd[:, k]))[:, None])
    for name, own in family.own(design.fixed, beta, values).items():
        labels.append(name)
        parts.append(own[:, None])
    return labels, torch.cat([part.expand(len(beta), part.shape[-1]) for part in parts], -1)


def users_beta(method: MixedModel, beta: Tensor) -> Tensor:
    """Coefficients (..., p) of the table's columns as they are."""
    design = method.network
    turn = design.fixed_units.to_users(design.fixed, (len(design.fixed),), beta)
    return beta @ turn.T + beta.new_tensor([design.offset if name in INTERCEPT else 0.0 for name in design.fixed])
