"""A small fit that is calibrated: calibrated.py FILE writes its numbers, by ranks, once for each rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from hierfl import Federation
from hierfl.inference import Method, Run, fit
from hierfl.inference.engines.distributed import DistributedEngine
from hierfl.inference.engines.ranks import follows
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.federations import blobs

HOW: dict[str, Any] = {
    "rounds": 3, "draws": 5, "dtype": torch.float64, "chunk": 1, "calibrate": "temperature", "conformal": 0.2,
}  # fmt: skip


def made() -> tuple[Method, Federation]:
    """Five clients, of which two are too small to have validation data."""
    federation = blobs([90, 66, 9, 44, 2], validation=0.3)
    return PFedVEM(architecture("mlp:5", federation), sigma_0=0.3), federation


def numbers(run: Run) -> dict[str, Any]:
    """What has to agree: summary.json's numbers, and columns of clients.csv."""
    assert run.calibration is not None
    return {**run.calibration.numbers, "clients": {k: v.tolist() for k, v in run.calibration.clients.items()}}


if __name__ == "__main__":
    torch.set_num_threads(1)
    calibrated = fit(*made(), engine=DistributedEngine, progress=False, **HOW)
    if not follows():
        Path(sys.argv[1]).write_text(json.dumps(numbers(calibrated)))
