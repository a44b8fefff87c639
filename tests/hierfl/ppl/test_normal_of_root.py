"""The normal distribution of a root is torch's, with less to load."""

from __future__ import annotations

import pytest
import torch
from pyro.distributions import MultivariateNormal

from hierfl.ppl.normal_of_root import NormalOfRoot


def test_it_is_torchs() -> None:
    """Density, moments, draws and shapes; expanded, too."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 1, 3, 3, generator=generator, dtype=torch.float64).tril()
    root.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
    loc, x = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    pairs = [NormalOfRoot(loc, root), MultivariateNormal(loc, scale_tril=root)]
    for of in (lambda d: d, lambda d: d.expand([2, 4, 5]), lambda d: d.expand([2, 4, 5]).to_event(1)):
        ours, theirs = map(of, pairs)
        assert (ours.batch_shape, ours.event_shape) == (theirs.batch_shape, theirs.event_shape)
        assert torch.equal(ours.log_prob(x), theirs.log_prob(x))
        assert torch.equal(ours.mean, theirs.mean)
        draws = []
        for normal in (ours, theirs):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                draws.append(normal.rsample())
        assert torch.equal(*draws)
    assert torch.equal(pairs[0].covariance_matrix, pairs[1].covariance_matrix)
    with pytest.raises(ValueError, match="scale_tril"):
        NormalOfRoot(loc, -root, validate_args=True)
