"""The generic rule's schedule and projection."""

from __future__ import annotations

from functools import partial

import torch
from torch.optim.lr_scheduler import ExponentialLR

from hierfl import Federation
from hierfl.inference import Gradient, fit
from hierfl.inference.local.optimizers import sgd
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture


class Ascent(PFedVEM):
    """The base by gradient steps, so that a schedule and a projection have something to do; a point guide: no noise."""

    how: object = None

    def exchange(self) -> dict:
        return {"base": Gradient(sgd(0.1), **self.how)}  # type: ignore[arg-type]

    def local(self) -> list:
        return []


def test_a_schedule_is_torchs(small: Federation, net: Architecture) -> None:
    """Each round's step is compared with one of constant size from the same place."""
    scheduled = type("Scheduled", (Ascent,), {"how": {"schedule": partial(ExponentialLR, gamma=0.5)}})(
        net, prior="flat"
    )
    runs = [fit(scheduled, small, rounds=r, dtype=torch.float64, progress=False).shared for r in range(4)]
    for r in (1, 2, 3):
        before, after = runs[r - 1], runs[r]
        constant = type("Constant", (Ascent,), {"how": {}, "shared": lambda self, start, b=before: dict(b)})(
            net, prior="flat"
        )
        step = fit(constant, small, rounds=1, dtype=torch.float64, progress=False).shared
        for name in net.base.names:
            assert torch.allclose(after[name] - before[name], 0.5 ** (r - 1) * (step[name] - before[name]), rtol=1e-6)


def test_a_projection_is_obeyed(small: Federation, net: Architecture) -> None:
    def inside(values: dict) -> dict:
        return {k: v.clamp(-0.2, 0.2) for k, v in values.items()}

    method = type("Boxed", (Ascent,), {"how": {"project": inside}})(net)
    run = fit(method, small, rounds=2, dtype=torch.float64, progress=False)
    for name in net.base.names:
        assert run.shared[name].abs().max() <= 0.2
