"""Centring of the clients' latents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.any_model_fits import SCHOOLS, centred, chunk_of, exact_schools, fitted, non_centred, schools

from hierfl.models.any_model.names import PHASE, Phase
from hierfl.models.any_model.steps import AtSites
from hierfl.models.any_model.verdict import Verdict


@pytest.mark.cpu(7, "an exploration worth 4,000 draws")
@pytest.mark.parametrize("model", [centred, pytest.param(non_centred, marks=pytest.mark.slow)])
def test_either_text_of_eight_schools_has_the_exact_posterior(model: object) -> None:
    run, method, _ = fitted(model, SCHOOLS, worth=4000, draws=8000)  # type: ignore[arg-type]
    posterior, exact = schools(run, method), exact_schools()
    for name, draws in posterior.items():
        mean, sd = exact[name]
        assert np.abs(draws.mean(-1).numpy() - mean).max() < 0.05 * np.max(sd), name
        assert np.abs(draws.std(-1).numpy() / sd - 1).max() < 0.05, name
    assert Verdict.read(run.shared).warnings == []


@pytest.mark.cpu(4, "a climb")
def test_the_formula_is_near_the_optimum_of_the_bound_and_a_change_costs_nothing() -> None:
    run, method, fed = fitted(centred, SCHOOLS, reweigh=False, transforms="off")
    at = AtSites.for_chunk(method, chunk_of(run, method, fed, **{PHASE: torch.tensor(float(Phase.FINE))}))
    for _ in range(3):
        at = at.centred().stepped()
    c = at.clients.centring

    def best(c: torch.Tensor) -> torch.Tensor:
        other = at.recentred(c)
        for _ in range(3):
            other = other.stepped()
        return other.bound.sum()

    bound = at.bound.sum()
    assert all(bound > best((c + by).clamp(0, 1)) - 0.02 for by in (-0.15, 0.15))
    assert bound > best(torch.ones_like(c)) + 0.2
    # To another centring and back.
    back = at.recentred((c + 0.1).clamp(0, 1)).recentred(c)
    assert torch.allclose(back.guide.mean, at.guide.mean)
    assert torch.allclose(back.guide.slope, at.guide.slope)
    moved = replace(at).recentred((c + 0.05).clamp(0, 1))
    assert (moved.bound - at.bound).min() > -0.01
