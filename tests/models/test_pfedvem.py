"""pFedVEM's priors."""

from __future__ import annotations

import torch

from hierfl import Federation
from hierfl.inference import fit
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.architecture import Architecture


def test_priors_report_what_they_have(small: Federation, net: Architecture) -> None:
    fixed = fit(PFedVEM(net, prior="fixed"), small, rounds=1, dtype=torch.float64, progress=False)
    assert (fixed.shared["w"] == 0).all()
    deviation = fixed.personal["mu"].square().mean(1)
    assert torch.allclose(torch.tensor(fixed.clients["deviation"].tolist(), dtype=torch.float64), deviation)
    flat_run = fit(PFedVEM(net, prior="flat"), small, rounds=1, progress=False)
    assert "tau" not in flat_run.clients
    assert flat_run.personal.keys() == {"mu"}


def test_every_prior_starts_from_the_same_network_and_head(small: Federation, net: Architecture) -> None:
    starts = [
        fit(cls, small, rounds=0, progress=False) for cls in (PFedVEM(net), PFedVEM(net, prior="fixed"), FedPer(net))
    ]
    for other in starts[1:]:
        assert torch.equal(starts[0].personal["mu"], other.personal["mu"])
        assert torch.equal(starts[0].shared["base.1.weight"], other.shared["base.1.weight"])
