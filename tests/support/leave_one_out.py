"""Leave-one-out of linear regressions, exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch.distributions import Normal

from hierfl.inference import Run


def exact_loo(run: Run) -> np.ndarray:
    """log p(y_ij | the client's others), every example left out in turn; globals and rho_j held."""
    fed, log_densities = run.fitted.federation, []
    for j, index in enumerate(fed.train):
        x, y = fed.examples(index)
        design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
        rho, w = run.personal["rho"][j], run.shared["w"]
        for i in range(len(y)):
            others = torch.arange(len(y)) != i
            precision = design[others].mT @ design[others] / 0.25 + torch.eye(3) / rho**2
            mean = torch.linalg.solve(precision, design[others].mT @ y[others] / 0.25 + w / rho**2)
            variance = 0.25 + design[i] @ torch.linalg.solve(precision, design[i])
            log_densities.append(float(Normal(design[i] @ mean, variance.sqrt()).log_prob(y[i])))
    return np.array(log_densities)
