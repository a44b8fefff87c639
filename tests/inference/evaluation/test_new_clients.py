"""A client that was never seen, with a few examples: every method answers, or says in one line why it cannot."""

from __future__ import annotations

import pytest
import torch
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs
from support.methods import network_for
from support.representatives import of_new_clients, over_methods

from hierfl import UserError
from hierfl.inference import Method, fit


@over_methods(METHODS, of_new_clients)
def test_a_new_client_with_examples(case: tuple[type[Method], dict]) -> None:
    cls, settings = case
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    method = cls(network_for(cls, federation), **settings, **more)
    run = fit(method, federation, rounds=2, dtype=torch.float64, progress=False)
    x, given = federation.x[:3], (federation.x[:12], federation.y[:12])
    if not run.fitted.initial or not method.new_client_steps():
        with pytest.raises(UserError, match="nothing that a new client could learn"):
            run.predict_new_client(x, given=given)
        return
    for draws, rounds in ((0, 1), (7, 2)):
        predictions = run.predict_new_client(x, draws, given, rounds)
        assert predictions.shape == (3, 3)
        torch.testing.assert_close(predictions.sum(1), torch.ones(3, dtype=predictions.dtype))
