"""What must hold on a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest
import torch
from conftest import blobs

from hierfl.inference import fit
from hierfl.models import FedPer, PFedVEM
from hierfl.networks import architecture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")


def test_a_point_guide_gives_the_same_state_as_on_the_cpu() -> None:
    fed = blobs([23, 7, 2, 14])
    method = FedPer(architecture("mlp:5", fed))
    here, there = (
        fit(method, fed, rounds=3, device=device, dtype=torch.float64, progress=False) for device in ("cpu", "cuda")
    )
    for name, value in {**here.shared, **here.personal}.items():
        assert torch.allclose(value, {**there.shared, **there.personal}[name].cpu(), rtol=1e-6, atol=1e-8)


def test_the_state_stays_on_the_device_and_does_not_depend_on_the_chunk() -> None:
    fed = blobs([23, 7, 2, 14])
    method = PFedVEM(architecture("mlp:5", fed))
    runs = [fit(method, fed, rounds=3, device="cuda", chunk=c, dtype=torch.float64, progress=False) for c in (0, 1, 3)]
    for name, value in {**runs[0].shared, **runs[0].personal}.items():
        assert value.device.type == "cuda"
        for other in runs[1:]:
            assert torch.allclose(value, {**other.shared, **other.personal}[name], rtol=1e-5, atol=1e-5)
    assert runs[0].posterior(draws=10).posterior["w_j"].shape[2] == 4
    assert runs[0].predict_new_client(fed.x[:3]).device.type == "cuda"
