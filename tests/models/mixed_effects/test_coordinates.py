"""One correlation's coordinates in closed form, beside torch's."""

import pytest
import torch
from torch.distributions import CorrCholeskyTransform, LKJCholesky

from hierfl.models.mixed_effects.model.covariance import pair_density, pair_factor


@pytest.mark.parametrize("concentration", [1.0, 2.5])
def test_a_correlation_is_torchs(concentration: float) -> None:
    """Its triangle and its density."""
    y, general = torch.linspace(-4, 4, 9).double(), CorrCholeskyTransform()
    factor = general(y[:, None])
    assert torch.allclose(pair_factor(y), factor, rtol=1e-12)
    density = LKJCholesky(2, torch.tensor(concentration).double(), validate_args=False).log_prob(factor)
    expected = density + general.log_abs_det_jacobian(y[:, None], factor)
    assert torch.allclose(pair_density(y, concentration), expected, rtol=1e-12)
