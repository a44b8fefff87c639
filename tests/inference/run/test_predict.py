"""Predictions of a run, and its best round."""

from __future__ import annotations

import pytest
import torch
from support.federations import blobs

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_class_probabilities_are_probabilities(small: Federation, net: Architecture) -> None:
    run = fit(PFedVEM(net), small, rounds=2, progress=False)
    for p in (
        run.predict(small.x[:5], 0),
        run.predict(small.x[:5], 0, draws=7),
        run.predict_new_client(small.x[:5]),
    ):
        assert p.shape == (5, 3)
        assert torch.allclose(p.sum(1), torch.ones(5), atol=1e-5)
    rows = run.clients
    j = 3
    right = run.predict(small.x[small.test[j]], j).argmax(1) == small.y[small.test[j]]
    assert rows["accuracy"][j] == pytest.approx(float(right.float().mean()))


def test_predictions_that_make_no_sense_are_refused(small: Federation, net: Architecture) -> None:
    run = fit(FedPer(net), small, rounds=1, progress=False)
    with pytest.raises(UserError, match="no client 'nowhere'"):
        run.predict(small.x[:2], "nowhere")
    with pytest.raises(UserError, match="no client 7; there are place-00"):
        run.predict(small.x[:2], 7)
    for draws in (-1, 1.5):
        with pytest.raises(UserError, match="draws must be (a whole number|at least 0)"):
            run.predict(small.x[:2], 0, draws=draws)
    x = small.x[:2]
    for ask, given in ((run.posterior, ()), (run.client_module, (0,)), (run.predict, (x, 0)), (run.entropies, (x,))):
        with pytest.raises(UserError, match="draws must be at most 100000, not 1000000000"):
            ask(*given, draws=10**9)
    with pytest.raises(UserError, match="no inputs"):
        run.predict(small.x[:0], 0)
    with pytest.raises(UserError, match="NaN or infinite"):
        run.predict(small.x[:2] * float("nan"), 0)
    with pytest.raises(UserError, match=r"expected \(n, 4\)"):
        run.predict(small.x[:2, :3], 0)
    with pytest.raises(UserError, match="fedper has no global model"):
        run.predict_new_client(small.x[:2])


def test_last_and_best_are_both_kept() -> None:
    import dataclasses

    fed = blobs([40, 30, 60])
    split = dataclasses.replace(fed, validation=[i[:10] for i in fed.train], train=[i[10:] for i in fed.train])
    run = fit(FedPer(architecture("mlp:5", split), lr=0.3), split, rounds=8, progress=False)
    metrics = run.metrics
    assert run.best()["round"] == 8  # three clients tell nothing
    assert run.validated.note.endswith("of 5 needed")
    assert len(metrics[metrics["split"] == "validation"]) == 8
    assert run.last()["round"] == 8
