"""Which likelihood a model has, and its levels."""

from __future__ import annotations

import pytest

from hierfl.data.formula.design import Design
from hierfl.data.formula.grouping import Grouping
from hierfl.data.formula.units import Units
from hierfl.models.mixed_effects.likelihood.gaussian.likelihood import Gaussian
from hierfl.models.mixed_effects.likelihood.quadrature.at_nodes import AtNodes
from hierfl.models.mixed_effects.likelihood.quadrature.likelihood import Quadrature
from hierfl.models.mixed_effects.method import MixedEffects

PATIENT = Grouping(("Intercept",), (1,), Units((0.0,), (1.0,)), "patient", most=3)
REGION = Grouping(("Intercept",), (1,), Units((0.0,), (1.0,)), "region", groups=("a", "b"))


@pytest.mark.parametrize(
    ("family", "inner", "outer", "kind"),
    [
        ("gaussian", None, None, Gaussian), ("gaussian", PATIENT, REGION, Gaussian),
        ("poisson", None, None, Quadrature), ("poisson", PATIENT, None, Quadrature), ("poisson", None, REGION, AtNodes),
        ("ordinal", PATIENT, REGION, AtNodes),
    ],
)  # fmt: skip
def test_a_likelihood_is_chosen_once_and_levels_are_in_the_order_of_the_numbers(
    family: str, inner: Grouping | None, outer: Grouping | None, kind: type
) -> None:
    extras = [name for name, level in (("inner", inner), ("outer", outer)) if level]
    design = Design.from_columns(["Intercept"], ["Intercept"], family, extras, levels=3, inner=inner, outer=outer)
    method = MixedEffects(design)
    assert type(method.likelihood) is kind
    assert method.likelihood is method.likelihood
    wanted = [("root", "b", "site", 0)]
    wanted += [("inner_root", "c", "site", 3)] if inner else []
    wanted += [("outer_root", "regions", "server", 2)] if outer else []
    assert [(level.name, level.effects, level.where, level.groups) for level in method.levels] == wanted
    assert list(method.sizes)[: len(wanted)] == [name for name, *_ in wanted]
    assert ("beta" in method.sizes) == method.likelihood.searches_beta == (kind is not Gaussian)
    assert method.inside == tuple(level for level in method.levels if level.name == "inner_root")
    assert method.above == tuple(level for level in method.levels if level.name == "outer_root")
