"""What the entries of a network's latents are called in ArviZ: by the user's classes and columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hierfl.data.category_columns import input_names
from hierfl.data.federation import Federation
from hierfl.nn.architecture import Architecture
from hierfl.nn.head_names import head_names

from ..evaluation.fitted import Fitted


def dimension_names(fitted: Fitted, latents: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Names along the one dimension of latents that are as long as the network's head, {"VARIABLE_dim_0": names}.

    Args:
        fitted: method, data and state.
        latents: shapes of the latents' values, {name: event}.
    """
    network: object = fitted.method.network
    if not isinstance(network, Architecture):
        return {}
    head, federation = network.head, fitted.federation
    classes = federation.label_names if federation.task == "classification" else []
    if head.outputs != max(1, len(classes)):
        return {}
    names = head_names(head, classes, [] if network.base.shapes else _inputs(federation, head.features))
    if len(set(names)) != head.d:
        return {}
    return {f"{name}_dim_0": names for name, event in latents.items() if event == (head.d,)}


def _inputs(federation: Federation, number: int) -> list[str]:
    """Names of a network's inputs: those of columns, where they have them."""
    facts = federation.about
    names = input_names(facts.get("columns") or [], facts.get("categories") or {})
    return names if len(names) == number else [f"input {k}" for k in range(number)]


def event_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Shapes of the values in arrays (chain, draw, J, *event)."""
    return {name: value.shape[3:] for name, value in arrays.items()}
