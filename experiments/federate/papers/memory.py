"""What a server's rules keep of a site that has left: what it has sent is in sums, and cannot be taken out of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hierfl.data.formula.design import Design
from hierfl.data.outline import outline_of
from hierfl.errors import UserError
from hierfl.inference import Method
from hierfl.inference.method.capabilities import is_tabular
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

from ...methods import Loaded
from ..leaving_page import NETWORKS

REMADE = "made again in each round from those who take part: what this site has sent fades with further rounds"
UNLESS = f"{REMADE}; a part that no other site has stays as it is"
#: what becomes of a message under each rule once its site has left, by the rule's class
FADES = {
    "SampleWeighted": REMADE, "SampleWeightedMeanOf": REMADE, "UniformMean": REMADE, "PrecisionWeightedMean": REMADE,
    "GibbsDraw": REMADE, "PooledResponseSd": REMADE, "EstimatedTotal": REMADE, "HeadPopulation": REMADE,
    "HeadSpreads": REMADE, "LabelSharePopulation": REMADE, "ConfusionPopulation": REMADE,
    "OutcomePopulation": REMADE, "RhoNodes": REMADE,
    "TrustWeighted": REMADE, "TrustedSpreads": REMADE, "TrustedNodes": REMADE, "Gradient": REMADE,
    "OwnCombination": UNLESS, "ClassMeans": UNLESS, "ClusterMeans": UNLESS, "CountSum": UNLESS,
    "GaussianProduct": UNLESS,
    "PopulationSearch": "searched again with those who take part, as long as the search has not ended; then it stays",
}  # fmt: skip
STAYS = {
    "DeltaSum": "a mean of what every site has last sent: this site's stays in it",
    "OnlineLaplace": "a precision that grows with each round: this site's part stays in it",
    "LangevinStep": "a sum of all sites' memories: this site's stays in it",
    "GaussianIncrements": "a sum of increments: this site's stay in it",
    "KeptDraws": "draws from earlier rounds: those stay until later ones take their places",
    "RunningMean": "a mean over rounds: those that this site was part of stay in it",
    "Averaged": "a mean over rounds: those that this site was part of stay in it, and fade",
    "CrossProducts": "one sum of one round: it stays",
    "NaturalGradient": "a sum of what every site has last sent: this site's part stays in it, and in the draws that "
    "the server keeps",
}


def kept_by_server(loaded: Loaded, settings: Mapping[str, Any], design: Architecture | None = None) -> list[str]:
    """What a server keeps of a site that has left, a line for each group of shared values.

    Args:
        loaded: the study's method.
        settings: the study's.
        design: what the method is made with, where that is known; None for an example.
    """
    try:
        method = _example(loaded, settings) if design is None else loaded.cls(design, **settings)
    except UserError:
        return [f"{loaded.name}: what its rules keep cannot be said without its network; ask the coordinator"]
    lines = []
    for group, rule in method.exchange().items():
        kind = type(rule).__name__
        lines.append(f"{group}: {FADES.get(kind) or STAYS.get(kind) or f'{kind} is not known: ask the coordinator'}")
    return lines or ["nothing: this method sends no messages"]


def _example(loaded: Loaded, settings: Mapping[str, Any]) -> Method:
    """The method with some network or design: its rules are those of any.

    Raises:
        UserError: where it can have none of the networks of examples.
    """
    if is_tabular(loaded.cls):
        return loaded.cls(Design.from_columns(["Intercept", "x"], ["Intercept", "x"]), **settings)
    outline = outline_of((1, 28, 28), "classification", 10, dtype=torch.float32)
    for spec in NETWORKS:
        try:
            return loaded.cls(architecture(spec, outline, latent=loaded.cls.latent), **settings)
        except UserError:
            if spec == NETWORKS[-1]:
                raise
    raise AssertionError("there are networks")
