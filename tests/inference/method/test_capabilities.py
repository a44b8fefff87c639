"""What only some methods can do: callers get an answer of every method, and a method opts in by what it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.federations import blobs

from hierfl.data.formula.design import Design
from hierfl.inference import Method
from hierfl.inference.method import capabilities
from hierfl.models import MixedEffects, PFedVEM
from hierfl.nn.networks.build import architecture

VALUES = torch.arange(3.0)
CLASSES = [cls for _, cls in inspect.getmembers(capabilities, inspect.isclass)]
PROTOCOLS = [cls for cls in CLASSES if cls.__module__ == capabilities.__name__]
#: of each capability: how a caller asks, the answer of a method without it, and a class body that has it
CASES: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any], Any]] = {
    "Tabular": (capabilities.is_tabular, False, {"tabular": True}, True),
    "NeedsEveryone": (capabilities.needs_everyone, False, {"needs_everyone": True}, True),
    "Converges": (
        lambda method: capabilities.has_converged(method, {}), False, {"finished": lambda self, shared: True}, True,
    ),
    "PredictionDraws": (capabilities.prediction_draws, 0, {"prediction_draws": 7}, 7),
    "GlobalMoments": (capabilities.has_global_moments, False, {"global_moments": True}, True),
    "UsersUnits": (
        lambda method: capabilities.in_users_units(method, "y", VALUES).tolist(), VALUES.tolist(),
        {"in_users_units": lambda self, name, values: 2 * values}, (2 * VALUES).tolist(),
    ),
    "OrderedLevels": (capabilities.level_names, (), {"level_names": ["low", "high"]}, ["low", "high"]),
    "NamedCoordinates": (capabilities.coordinates, {}, {"coordinates": {"w_j_dim_0": ["a"]}}, {"w_j_dim_0": ["a"]}),
    "ShrinkageTable": (
        lambda method: capabilities.shrinkage_table(method, None), None,
        {"shrinkage_table": lambda self, fitted: "a table"}, "a table",
    ),
    "EvaluatesPoints": (
        lambda method: (
            capabilities.evaluated_points(method, {}), capabilities.explored_points(method, {}),
            capabilities.has_fixed_sums(method),
        ), (1, 0, False),
        {
            "evaluated_points": lambda self, shared: 7, "explored_points": lambda self, shared: 5, "fixed_sums": True,
        }, (7, 5, True),
    ),
    "ChecksBroadcasts": (
        lambda method: capabilities.broadcast_error(method, {}, VALUES), "",
        {"broadcast_error": lambda self, shared, inputs: "far"}, "far",
    ),
    "BoundsExploration": (capabilities.most_explored, None, {"most_explored": 9}, 9),
    "ReadsColumns": (capabilities.reads_columns, False, {"reads_columns": True, "usual_rounds": 5}, True),
    "JointPosterior": (
        lambda method: capabilities.joint_posterior(method, None), None,
        {"joint_posterior": lambda self, fitted: "draws"}, "draws",
    ),
    "AddsNoise": (
        lambda method: isinstance(method, capabilities.AddsNoise), False,
        {"mechanisms": lambda self, options: ()}, True,
    ),
    "ChangesUnderNoise": (
        lambda method: isinstance(method, capabilities.ChangesUnderNoise), False,
        {"under_noise": lambda self, options, federation: self}, True,
    ),
}  # fmt: skip


def test_every_capability_is_tried() -> None:
    assert {cls.__name__ for cls in PROTOCOLS} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_method_has_a_capability_by_what_it_declares(name: str) -> None:
    asked, usual, body, answer = CASES[name]
    net = architecture("linear", blobs([9, 9]))
    assert asked(PFedVEM(net)) == usual
    assert asked(type("Own", (PFedVEM,), body)(net)) == answer


def test_classes_answer_for_their_flags() -> None:
    assert capabilities.is_tabular(MixedEffects)
    assert capabilities.needs_everyone(MixedEffects)
    assert not capabilities.is_tabular(PFedVEM)
    assert not capabilities.needs_everyone(PFedVEM)


def test_mixed_models_have_most_of_them_and_the_page_of_all_methods_none() -> None:
    mixed = MixedEffects(Design.from_columns(["Intercept", "x"], ["Intercept"]))
    plain = PFedVEM(architecture("linear", blobs([9, 9])))
    of_plain_models = ["BoundsExploration", "JointPosterior", "ReadsColumns"]
    assert [cls.__name__ for cls in PROTOCOLS if not isinstance(mixed, cls)] == of_plain_models
    assert [cls.__name__ for cls in PROTOCOLS if isinstance(plain, cls) or isinstance(Method, cls)] == []
