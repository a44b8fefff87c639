"""Options of a fit, and initial values: what cannot be is one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hierfl import Federation, UserError
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg
from hierfl.nn.architecture import Architecture


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"device": "hpu"}, "device 'hpu' is not there; available: cpu"),
        ({"device": "mkldnn"}, "device 'mkldnn' is not there"),
        ({"device": 0.5}, "device 0.5 is not there"),
        ({"draws": 1e20}, r"draws must be a whole number of at least 1, not 1e\+20"),
        ({"draws": 10**20}, "draws must be at most 100000"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"rounds": "3"}, "rounds must be a whole number of at least 0, not '3'"),
        ({"chunk": 2**40}, "chunk must be at most"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"participation": "half"}, "participation must be a number, not 'half'"),
        ({"participation": float("nan")}, "participation must lie in"),
        ({"max_message_ratio": 0.5}, r"max_message_ratio must be 0 \(none\) or from 1 to 1e\+15, not 0.5"),
        ({"max_message_ratio": -1.0}, "max_message_ratio must be 0"),
        ({"max_message_ratio": float("nan")}, "max_message_ratio must be 0"),
        ({"max_message_ratio": float("inf")}, "max_message_ratio must be 0"),
        ({"max_message_ratio": "much"}, "max_message_ratio must be a number"),
        ({"dp": "site", "epsilon": float("nan")}, "epsilon must be a finite number, not nan"),
        ({"dp": "site", "epsilon": 4.0, "clip": float("nan")}, "clip must be a finite number, not nan"),
        ({"dp": "site", "epsilon": 1e30}, r"epsilon must be at most 1e\+09, not 1e\+30: that much hides nothing"),
        ({"dp": "site", "epsilon": 1e-30}, "epsilon must be at least 0.001, not 1e-30: so much noise leaves nothing"),
        ({"dp": "site", "epsilon": 4.0, "clip": 1e30}, r"clip from 1e-06 to 1e\+09, not 1e-05 and 1e\+30"),
        ({"dp": "site", "epsilon": 4.0, "clip": 1e-30}, r"clip from 1e-06 to 1e\+09, not 1e-05 and 1e-30"),
        ({"clip": 7.0}, "clip is of a fit with noise"),
        ({"usual_rows": 50}, r"usual_rows is of a fit with noise \(dp 'site'\), not of dp 'none'"),
        ({"dp": "client", "epsilon": 4.0, "patient_rows": 3}, "patient_rows is of a fit with noise"),
        ({"cuda_graphs": True}, "CUDA graphs need a CUDA device"),
        ({"precision": "tf32"}, "precision 'tf32' needs a CUDA device"),
        ({"precision": "fp16"}, "unknown precision 'fp16'; known: full, tf32, bf16"),
        ({"precision": "bf16", "dtype": torch.float64}, "precision 'bf16' is of fits in torch.float32"),
        ({"dtype": torch.int64}, "torch.float32 or torch.float64, not torch.int64"),
    ],
)
def test_options_that_cannot_be(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        Options(**how)
    assert "\n" not in str(error.value)


def test_a_seed_may_be_as_large_as_a_configuration_can_hold() -> None:
    assert Options(seed=2**63 - 1).seed == 2**63 - 1


def test_initial_values_that_are_not_finite_are_refused(small: Federation, net: Architecture) -> None:
    class Endless(FedAvg):
        def shared(self, start: Any) -> Any:
            return {**super().shared(start), "w": torch.full_like(start.head, 1e300)}

    with pytest.raises(UserError, match="the initial value of 'w' is not finite in torch.float32"):
        Fit(Endless(net), small, Options(dtype=torch.float32))
    Fit(Endless(net), small, Options(dtype=torch.float64))
