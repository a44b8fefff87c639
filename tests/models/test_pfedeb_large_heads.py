"""pFedEB where heads are large: low rank, in the run's precision."""

from dataclasses import replace

import torch
from support.federations import blobs
from torch import Tensor

from hierfl import fit
from hierfl.models import PFedEB
from hierfl.nn.networks.build import architecture

HELD = {"base_epochs": 0, "nodes": "off"}


def test_low_rank_posteriors_in_single_precision_are_those_of_double():
    fed = blobs([40, 9, 25, 31], features=6)

    def fitted(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        of_it = replace(fed, x=fed.x.to(dtype))
        how = {**HELD, "covariance": "low_rank", "rank": 7, "exchange": "outputs", "points": 16}
        run = fit(PFedEB(architecture("mlp:5", fed), **how), of_it, 10, dtype=dtype, progress=False, evaluate_every=100)
        assert run.shared["w"].dtype == dtype
        return run.shared["w"].double(), run.shared["w.log_rho"].double()

    for single, double in zip(fitted(torch.float32), fitted(torch.float64), strict=True):
        torch.testing.assert_close(single, double, rtol=0, atol=2e-3)


def test_only_large_heads_have_low_rank_posteriors_by_default():
    fed = blobs([20, 20], classes=10, features=6, test=20)
    by_width = {width: PFedEB(architecture(f"mlp:{width}", fed)).posterior().covariance for width in (65, 66)}
    assert by_width == {65: "full", 66: "low_rank"}  # 9 (65 + 1) is 594
    assert PFedEB(architecture("mlp:66", fed), covariance="kronecker").posterior().covariance == "kronecker"
