"""What follows from the settings of pFedEB and the head of a network."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.federations import blobs, slopes

from hierfl.experiments.fingerprints import foundation
from hierfl.experiments.methods import load
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.models import PFedEB
from hierfl.models.pfedeb import PFedEB as OfItsRoom
from hierfl.models.pfedeb.config import Config
from hierfl.nn.networks.build import architecture


def config(network: str = "mlp:5", **settings: Any) -> Config:
    return PFedEB(architecture(network, blobs([9, 9])), **settings).config


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"small": True, "points": 64, "covariance": "full", "nodes": True, "own_spreads": False}),
        ({"network": "mlp:30"}, {"small": False, "points": 16, "covariance": "full", "nodes": False}),
        ({"network": "mlp:400"}, {"covariance": "low_rank"}),
        ({"prior": "fixed"}, {"learned": False, "nodes": False}),
        ({"spreads": "clients"}, {"own_spreads": True, "nodes": False, "number_of_blocks": 2}),
        ({"spreads": "pooled", "points": 1}, {"points": 1, "number_of_blocks": 1}),
        ({"network": "mlp:30", "nodes": "on"}, {"nodes": True}),
    ],
)
def test_one_configuration_says_what_is_fitted(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    configuration = config(**settings)
    assert {name: getattr(configuration, name) for name in expected} == expected


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().points = 3  # type: ignore[misc]


def test_what_a_head_says_and_its_draws_in_the_end_follow() -> None:
    configuration = config(spreads="clients", draws=7)
    last = configuration.posterior(final=True)
    assert (last.final, last.own, last.population, last.turns) == (7, "log_rho", "w", 3)
    assert configuration.posterior(configuration.terms()).trains == (
        "mu",
        "w_j_draws",
        "w_j_away",
        "w_j_begun",
        "seen",
        "log_rho",
        "log_rho_sd",
    )


def test_settings_of_a_step_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        GaussianHead("w_j", "mu", "full", 1, 1, 50)  # type: ignore[misc]


def test_biases_of_a_regression_are_apart_too() -> None:
    method = PFedEB(architecture("linear", slopes([9, 9]), noise=0.5))
    assert method.config.blocks.tolist() == [0] * (len(method.config.blocks) - 1) + [1]


def test_a_fingerprint_covers_the_room() -> None:
    loaded = load("pfedeb")
    assert loaded.cls is PFedEB is OfItsRoom
    names = {path.stem for path in foundation(loaded.cls)}
    assert names == {"at_nodes", "config", "head_nodes", "head_population", "population", "settings", "waiting"}
