"""What FedPop asks of its population, of each of the two."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from support.federations import blobs

from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedPop, fedpop
from hierfl.nn.networks.build import architecture

FED = blobs([9, 7, 8])
SETTINGS: list[dict[str, Any]] = [
    {"population": "isotropic"}, {"population": "diagonal"}, {"population": "energy"},
    {"population": "energy", "energy_hidden": 2},
]  # fmt: skip


def method(**settings: Any) -> FedPop:
    return FedPop(architecture("mlp:2", FED), **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_every_latent_has_draws_and_every_learned_value_a_rule(settings: dict[str, Any]) -> None:
    model = method(**settings)
    start = InitialWeights.for_network(model.network, 0)
    shared, rules = model.shared(start), model.exchange()
    assert set(model.personal(start)) == {f"{name}_draws" for name in model.population.latents}
    assert {*rules} == {"base", *model.population.learned}
    assert {name.partition(".")[0] for name in shared} == {*rules}
    assert shared["log_sigma"].shape == ((len(start.head),) if settings["population"] == "diagonal" else (1,))


@pytest.mark.parametrize("settings", SETTINGS[1:3], ids=lambda s: s["population"])
def test_a_new_client_begins_at_draws_of_the_population(settings: dict[str, Any]) -> None:
    model = method(**settings)
    initial = model.personal(InitialWeights.for_network(model.network, 0))
    rows = {name: torch.stack([value + k for k in range(3)]) for name, value in initial.items()}
    assert model.init_new_client({}, initial, {}) == initial
    values = model.init_new_client({}, initial, rows)
    if settings["population"] == "diagonal":
        assert values == initial
        return
    assert torch.equal(values["z_new_draws"], rows["z_new_draws"].flatten(0, 1))
    assert torch.equal(values["z_draws"], initial["z_draws"].expand_as(values["z_draws"]))


def test_the_page_of_fedpop_knows_no_second_chain() -> None:
    assert "z_new" not in inspect.getsource(fedpop)
