"""The methods that ship pass the check that a user's own must pass, and it leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from support.cases import METHODS
from support.federations import blobs
from support.methods import TUTORIAL, network_for
from support.representatives import over_methods

from hierfl import fit
from hierfl.inference.engines import plate
from hierfl.inference.model_check.check import is_shipped
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit


@over_methods(METHODS)
def test_shipped_methods_pass(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both precisions, which they are fitted in."""
    monkeypatch.setattr(plate, "is_shipped", lambda method: False)
    fed = blobs([23, 7, 2, 14, 14, 5, 9, 31, 3])
    for dtype in (torch.float64, torch.float32):
        method = case[0](network_for(case[0], fed), **case[1])
        Fit(method, fed, Options(rounds=1, dtype=dtype))


def test_the_check_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that was checked, and the same without, agree to the bit; so does torch's own generator."""
    fed = blobs([6, 3, 2, 4])
    method = TUTORIAL(network_for(TUTORIAL, fed))
    assert not is_shipped(method)
    checked = fit(method, fed, rounds=2, progress=False)
    monkeypatch.setattr(plate, "is_shipped", lambda method: True)
    plain = fit(method, fed, rounds=2, progress=False)
    for values, expected in ((checked.shared, plain.shared), (checked.personal, plain.personal)):
        assert all(torch.equal(values[name], expected[name]) for name in values)
