"""What clients do in a round in which they do not report."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.participation import draw_participants
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.architecture import Architecture


def test_who_does_not_report_still_trains_and_moves_nothing_shared(small: Federation, net: Architecture) -> None:
    run = fit(PFedVEM(net), small, rounds=1, participation=0.3, dtype=torch.float64, progress=False)
    silent = sorted(set(range(7)) - set(draw_participants(small.keys, 1, 0, 0.3, 1)))
    assert silent
    start = PFedVEM(net).shared(InitialWeights.for_network(net, 0))["w"].double()
    assert all(not torch.equal(run.personal["mu"][j], start) for j in silent)

    deaf = dataclasses.replace(small, y=small.y.clone())
    for j in silent:
        deaf.y[small.train[j]] = (deaf.y[small.train[j]] + 1) % 3
    other = fit(PFedVEM(net), deaf, rounds=1, participation=0.3, dtype=torch.float64, progress=False)
    assert all(torch.equal(v, other.shared[k]) for k, v in run.shared.items())


def test_who_catches_up_trains_when_it_reports_or_is_evaluated(small: Federation, net: Architecture) -> None:
    how = {
        "participation": 0.3,
        "dtype": torch.float64,
        "progress": False,
        "absent_clients": "catch-up",
        "evaluate_every": 3,
    }
    before = fit(PFedVEM(net), small, rounds=1, **how)
    two = Fit(PFedVEM(net), small, Options(rounds=3, **{k: v for k, v in how.items() if k != "progress"}))
    two.step()
    two.step()
    speaking = set(draw_participants(small.keys, 2, 0, 0.3, 1))
    assert 0 < len(speaking) < 7
    for j in range(7):
        assert torch.equal(two.engine.store.personal["mu"][j], before.personal["mu"][j]) == (j not in speaking), j
    kept = two.engine.store.personal["mu"].clone()
    two.step()  # an evaluation follows
    assert all(not torch.equal(two.engine.store.personal["mu"][j], kept[j]) for j in range(7))
    whole = fit(PFedVEM(net), small, rounds=3, **how)
    assert torch.equal(whole.personal["mu"], two.engine.store.personal["mu"])
    with pytest.raises(UserError, match="unknown value of absent_clients"):
        fit(PFedVEM(net), small, rounds=1, absent_clients="sleep", progress=False)


@pytest.mark.parametrize("method", [PFedVEM, FedPer])
def test_who_is_frozen_when_absent_is_as_it_last_reported(
    method: type[PFedVEM] | type[FedPer], small: Federation, net: Architecture
) -> None:
    how = {"participation": 0.3, "dtype": torch.float64, "absent_clients": "freeze"}
    ready = Fit(method(net), small, Options(rounds=4, **how))
    for number in range(1, 5):  # every one is evaluated
        before = {**ready.engine.store.personal, **{f"its {k}": v for k, v in ready.engine.store.copies.items()}}
        ready.step()
        ready.evaluate()
        after = {**ready.engine.store.personal, **{f"its {k}": v for k, v in ready.engine.store.copies.items()}}
        speaking = draw_participants(small.keys, number, 0, 0.3, 1)
        assert 0 < len(speaking) < 7
        for j in range(7):
            assert all(torch.equal(after[k][j], v[j]) for k, v in before.items()) == (j not in speaking), (number, j)
    all_report = [
        fit(method(net), small, rounds=2, dtype=torch.float64, progress=False, absent_clients=absent).shared
        for absent in ("freeze", "train")
    ]
    assert all(torch.equal(v, all_report[1][k]) for k, v in all_report[0].items())
