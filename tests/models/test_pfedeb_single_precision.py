"""pFedEB's large heads are computed in the run's precision."""

from dataclasses import replace

import torch
from torch import Tensor

from hierfl import fit
from hierfl.models import PFedEB
from hierfl.nn.networks.build import architecture
from tests.support.federations import blobs

HELD = {"base_epochs": 0, "nodes": "off"}


def test_low_rank_posteriors_in_single_precision_are_those_of_double():
    fed = blobs([40, 9, 25, 31], features=6)

    def found(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        of_it = replace(fed, x=fed.x.to(dtype))
        how = {**HELD, "covariance": "low_rank", "rank": 7, "exchange": "outputs", "points": 16}
        run = fit(PFedEB(architecture("mlp:5", fed), **how), of_it, 10, dtype=dtype, progress=False, evaluate_every=100)
        assert run.shared["w"].dtype == dtype
        return run.shared["w"].double(), run.shared["w.log_rho"].double()

    for single, double in zip(found(torch.float32), found(torch.float64), strict=True):
        torch.testing.assert_close(single, double, rtol=0, atol=2e-3)
