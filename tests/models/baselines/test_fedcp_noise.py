"""FedCP's noisy policy."""

from __future__ import annotations

import pytest
import torch
from support.baselines import fitted, rows_of
from support.federations import blobs
from torch.nn.functional import gumbel_softmax

from hierfl.models import FedCP
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_it_is_gumbel_softmax(tau: float) -> None:
    """The same quantiles as torch's own, of the two scores of each feature; the median is the policy without noise."""
    fed = blobs([6, 5])
    method, n = FedCP(architecture("mlp:5", fed), tau=tau), 40_000
    chunk = rows_of(method, fed).take([0])
    scores = 2 * torch.randn(1, 1, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noise = chunk.noise(0, n).normal("noise", 1, torch.Size([5]))
    with Restrict({}, latents={"noise": noise}):
        draws = method.policy(scores, method.noise(chunk.batch()))[:, 0, 0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = gumbel_softmax(scores.view(1, 2, 5).expand(n, 2, 5), tau=tau, dim=1)[:, 0]
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    # A quantile's standard error is sqrt(p (1 - p) / n) over the density there, below 0.01 in both.
    torch.testing.assert_close(draws.quantile(levels, 0), other.quantile(levels, 0), rtol=0, atol=0.025)
    torch.testing.assert_close(draws.median(0).values, method.policy(scores)[0, 0], rtol=0, atol=0.025)
    assert (draws.std(0) > 0.05).all()


def test_it_is_noisy_in_training_alone() -> None:
    """Another training with noise than without; predictions of one state are the same whichever was said."""
    fed = blobs([23, 12, 9])
    net = architecture("mlp:5", fed)
    with_noise, without = (fitted(FedCP(net, gumbel=when), fed, 1) for when in ("training", "never"))
    assert (with_noise.personal["mu"] - without.personal["mu"]).abs().max() > 1e-3
    x = fed.examples(fed.test[0])[0]
    still = [fitted(FedCP(net, gumbel=when, epochs=0), fed, 1) for when in ("training", "never")]
    predictions = [run.predict(x, client=fed.ids[0]) for run in still]
    assert torch.equal(predictions[0], predictions[1])
