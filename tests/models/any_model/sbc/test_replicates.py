"""Fits of several data sets as rows of one plate: each is the fit of its data alone."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from support.any_models import FEW, brief, counts

from hierfl import fit_model
from hierfl.data.column_federation import column_federation
from hierfl.models.any_model.columns import checked
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import DRAWS, MEAN, OWN_MEAN, PRECISION, WORTH
from hierfl.models.any_model.sbc.replicates import Replicates


def tables() -> list[pd.DataFrame]:
    """Two data sets of clients with unequal rows; the names key random numbers, and so are of the data set."""
    frames = [counts((4, 6, 3), seed) for seed in (1, 2)]
    return [df.assign(site=[f"{k}/{name}" for name in df["site"]]) for k, df in enumerate(frames)]


@pytest.mark.cpu(4, "two fits one after the other beside the two together")
def test_each_is_what_its_data_alone_give() -> None:
    each = tables()
    federation, design = column_federation(pd.concat(each, ignore_index=True), "site")
    method = AnyModel(checked(brief, federation, design), brief, **FEW)
    together = Replicates(method, federation.to(dtype=torch.float64), 3, [11, 12]).run()
    assert {replicate.alone for replicate in together} == {False}
    for df, replicate, seed in zip(each, together, (11, 12), strict=True):
        run = fit_model(brief, df, progress=False, seed=seed, **FEW).run
        assert replicate.arrived
        assert replicate.rounds == run.rounds
        for name in (MEAN, PRECISION, DRAWS, WORTH):
            torch.testing.assert_close(replicate.shared[name], run.shared[name], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(replicate.values[OWN_MEAN][:, 0], run.personal[OWN_MEAN], rtol=1e-8, atol=1e-8)


def test_one_that_cannot_be_fitted_leaves_the_others_alone() -> None:
    first, second = tables()
    second["y"] = -1.0
    federation, design = column_federation(pd.concat([first, second], ignore_index=True), "site")
    method = AnyModel(design, brief, **FEW)
    sound, failed = Replicates(method, federation.to(dtype=torch.float64), 3, [11, 12], rounds=4).run()
    assert not failed.arrived
    assert failed.alone
    assert not sound.alone
    assert sound.rounds == 4
