"""Who reports in a round."""

from __future__ import annotations

import pytest
import torch
from support.federations import blobs

from hierfl import UserError
from hierfl.inference.server import participation
from hierfl.inference.server.participation import draw_participants


def test_participation_is_bernoulli_keyed_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = blobs([3] * 50)
    rounds = [draw_participants(fed.keys, t, 0, 0.2, 1) for t in range(150)]
    share = sum(map(len, rounds)) / (150 * 50)
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / 7500) ** 0.5
    sizes = torch.tensor([float(len(r)) for r in rounds])
    assert 4 < sizes.var() < 12  # independent: variance 8 with an error of 0.9, not a fixed number
    shuffled = fed.select(list(reversed(range(50))))
    assert {fed.ids[j] for j in rounds[7]} == {shuffled.ids[j] for j in draw_participants(shuffled.keys, 7, 0, 0.2, 1)}
    assert min(len(draw_participants(fed.keys, t, 0, 0.01, 2)) for t in range(20)) >= 2
    monkeypatch.setattr(participation, "ATTEMPTS", 100)
    with pytest.raises(UserError, match="practically never"):
        draw_participants(fed.keys, 1, 0, 1e-9, 2)
