"""Leave-one-out by PFedEB's draws beside the exact one, everything fitted anew without the example."""

import numpy as np
import pytest
import torch
from support.representatives import of_all
from support.simulated_heads import NOISE, S_W, Truth, fitted, simulated
from torch import Tensor

from hierfl.arviz_io import loo
from hierfl.elpd import elpd_value


def exact_loo(truth: Truth) -> Tensor:
    """log p(y_i | all others), w, all w_j and rho integrated out: a ratio of marginal likelihoods over a grid, (N,)."""
    parts = [truth.fed.examples(index) for index in truth.fed.train]
    z = [truth.net.head.design(x) for x, _ in parts]
    y, whole = torch.cat([y for _, y in parts]), torch.cat(z)
    same = torch.block_diag(*[each @ each.T for each in z])
    fixed = S_W**2 * whole @ whole.T + NOISE**2 * torch.eye(len(y), dtype=torch.float64)
    log_rho = torch.linspace(-7, 2.5, 200, dtype=torch.float64)
    density = log_rho - (2 * log_rho).exp() / 200  # half-normal of scale 10
    with_all, without = [], []
    for t in log_rho:
        inverse = torch.linalg.inv(fixed + (2 * t).exp() * same)
        height = 0.5 * torch.logdet(inverse) - 0.5 * y @ inverse @ y - 0.5 * len(y) * np.log(2 * np.pi)
        variance = 1 / inverse.diagonal()
        away = variance * (inverse @ y)
        own = torch.distributions.Normal(0.0, variance.sqrt()).log_prob(away)
        with_all.append(height.expand(len(y)))
        without.append(height - own)
    total, rest = (torch.stack(each) + density[:, None] for each in (with_all, without))
    return total.logsumexp(0) - rest.logsumexp(0)


@pytest.mark.slow
@pytest.mark.cpu(3, "16,000 draws, whose errors are the tolerance")
@pytest.mark.parametrize("rho", of_all([0.0, 0.5], [0.5], str))
def test_leave_one_out_is_the_exact_one_with_everything_fitted_anew(rho):
    truth = simulated("gaussian", rho, 3, (6, 9, 5, 12, 8, 7, 10, 6), features=2)
    run = fitted(truth, 25, draws=16_000)
    elpd = loo(run.posterior(draws=16_000))
    exact = exact_loo(truth).numpy()
    k = elpd_value(elpd, "pareto_k").values
    good, off = k < 0.7, elpd_value(elpd, "elpd_i").values - exact
    assert good.mean() >= 0.9
    # 16,000 draws have errors of some 0.01 an example, and of 0.1 where k nears its limit.
    assert np.median(np.abs(off)) < 0.02
    assert np.abs(off)[good].max() < 0.2
    assert abs(off[good].sum()) < 0.6
