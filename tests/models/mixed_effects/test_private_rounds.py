"""Noise inside clients of a mixed model of a binary response: rounds of scores and information, and their bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support import private_rounds

from hierfl.data.batch import Batch
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Run, fit
from hierfl.inference.options import Options
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.private.working_release import WorkingRelease
from hierfl.models.mixed_effects.report.summary import effects_table

HOW: dict[str, Any] = {"progress": False, "dtype": torch.float64, "splits": ()}


def binary(seed: int, epsilon: float, **settings: Any) -> tuple[Run, Any, Any]:
    """A fit of a binary response with noise, its data and design."""
    federation, design = from_formula(
        private_rounds.table(seed), private_rounds.FORMULAS["binomial"], family="binomial"
    )
    method = MixedEffects(design, ranges=private_rounds.RANGES, **{"draws": 0, **settings})
    return fit(method, federation, 30, dp="site", epsilon=epsilon, seed=seed, **HOW), federation, design


@pytest.mark.cpu(8, "fits of a binary response, with chains of ten clients")
def test_a_binary_response_has_four_rounds_of_noisy_scores() -> None:
    """Near the fit without noise where there is hardly any; wider with more; one budget for all rounds."""
    exact, federation, design = binary(1, 1e9)
    plain = effects_table(fit(MixedEffects(design, draws=0), federation, 60, **HOW).fitted)[0]
    exact_effects = effects_table(exact.fitted)[0]
    assert exact.rounds == 4
    gap = (exact_effects.estimate - plain.estimate).abs() / plain.standard_error
    assert (gap[:3] < 0.1).all()
    assert gap[3] < 0.4  # restricted here, maximum likelihood there
    np.testing.assert_allclose(exact_effects.standard_error[:3], plain.standard_error[:3], rtol=0.06)
    noisy = binary(1, 4.0, draws=40)[0]
    table = effects_table(noisy.fitted)[0]
    assert (table.standard_error[:3] > exact_effects.standard_error[:3]).all()
    assert table.upper.notna().all()
    assert noisy.noise is not None
    assert noisy.noise.epsilon == pytest.approx(4.0, rel=1e-6)
    assert len(noisy.noise.parts) == 4
    # A client's effect is by its own rows.
    means = [run.personal["b_mean"].flatten() for run in (noisy, exact)]
    assert float(torch.corrcoef(torch.stack(means))[0, 1]) > 0.95


def test_a_binary_row_moves_scores_and_information_by_no_more_than_the_bound() -> None:
    """At any point, also far away, and for rows beyond the ranges."""
    rng = np.random.default_rng(0)
    federation, design = from_formula(private_rounds.table(0), private_rounds.FORMULAS["binomial"], family="binomial")
    options = Options(dp="site", epsilon=1.0, dtype=torch.float64)
    method = MixedEffects(design, ranges=private_rounds.RANGES, draws=0).under_noise(options, federation)
    assert method.private is not None
    rows = pd.DataFrame({"age": rng.choice([20.0, 90.0, 55.0, 1e9, -1e9], 400), "sex": rng.choice(["f", "m"], 400)})
    x = torch.from_numpy(federation.about["reader"](rows))[:, None]
    batch = Batch(x=x, y=torch.from_numpy(rng.integers(0, 2, (400, 1)) * 1.0), n=torch.ones(400), mask=None)
    for scale in (0.1, 1.0, 5.0, 50.0):
        points = torch.from_numpy(rng.normal(0, scale, (400, 3)))
        moved = WorkingRelease(method).clipped(batch, points).norm(dim=1)
        assert float(moved.max()) <= method.private.sensitivity * (1 + 1e-12)
    assert float(moved.max()) > 0.99 * method.private.sensitivity
