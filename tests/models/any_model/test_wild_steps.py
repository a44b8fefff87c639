"""A step so wild that its numbers would drown those of all later rounds."""

from __future__ import annotations

import pytest
from support.any_model_fits import SCHOOLS, fitted, non_centred, schools

from hierfl.models.any_model.names import WORTH


@pytest.mark.cpu(5, "one fit, whose second guide has a standard deviation of ten in a logarithm")
def test_sums_of_differences_keep_their_digits() -> None:
    """The clients' curvature there is 1e44; what is left of it when it is gone again was taken for a posterior."""
    df = SCHOOLS.assign(y=[6.0, -11, -19, 27, -10, 19, -14, -23])
    run, method, _ = fitted(non_centred, df, points=256, worth=400, draws=400)
    tau = schools(run, method)["tau"]
    assert float(run.shared[WORTH]) > 300
    # by quadrature: 8.71 +- 6.11
    assert float(tau.mean()) == pytest.approx(8.71, abs=0.6)
    assert float(tau.std()) == pytest.approx(6.11, abs=0.7)
