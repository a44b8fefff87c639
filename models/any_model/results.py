"""Draws of the joint posterior of a fitted plain model, as ArviZ's InferenceData."""

from __future__ import annotations

from typing import Any

from .joint_draws import JointDraws
from .posterior import posterior_data


class ModelPosterior(JointDraws):
    """:class:`.joint_draws.JointDraws` with a conversion to InferenceData."""

    def inference_data(
        self, *, prior: int | None = None, predictive: bool = True, rows: bool = True, observed: bool = True
    ) -> Any:
        """The joint posterior for ArviZ; see :meth:`.fitted_model.FittedModel.posterior`."""
        prior = len(self.draws.x) if prior is None else prior
        return posterior_data(self, prior=prior, predictive=predictive and rows, rows=rows, observed=observed and rows)
