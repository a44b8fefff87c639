"""pFedEB's base that waits until spreads have settled: how long, and what stays."""

import math

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs

from hierfl.errors import UserError
from hierfl.inference.method.few_rounds import warn_of_few_rounds
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import LEAST_LOG
from hierfl.models import PFedEB
from hierfl.models.pfedeb.waiting import waits_on
from hierfl.nn.networks.build import architecture

CHEAP = {"points": 1, "nodes": "off"}


def test_the_base_stays_where_it_began_while_it_waits():
    """Head, population and spreads move; a bound of two rounds."""
    fed = blobs([9, 14, 11], features=3)
    method = PFedEB(architecture("mlp:4", fed), settle=2, server_momentum=0.5, base_lr=0.1, **CHEAP)
    shared = {rounds: fitted(method, fed, rounds).shared for rounds in (1, 2, 3)}
    base = [name for name in shared[1] if name.startswith("base")]
    for name in base:
        torch.testing.assert_close(shared[2][name], shared[1][name], rtol=1e-10, atol=1e-12)
    assert any((shared[3][name] - shared[2][name]).abs().max() > 1e-3 for name in base)
    assert (shared[2]["w"] - shared[1]["w"]).abs().max() > 1e-3
    assert [float(shared[rounds]["w.waits"]) for rounds in (1, 2, 3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("number", "waits", "step", "tries", "expected"),
    [
        (5, 1, 0.05, 0, 0),
        (5, 1, 0.15, 0, 1),
        (1, 1, 0.05, 0, 1),  # posteriors have no width yet
        (5, 1, 0.05, 1, 1),  # a step is taken again
        (8, 1, 0.15, 0, 0),  # the last of eight rounds
        (5, 0, 0.15, 0, 0),  # it has been trained
    ],
)
def test_how_long_it_waits(number: int, waits: float, step: float, tries: float, expected: float):
    """The first block has just come to its floor from afar, and the second decides."""
    context = AggregationContext(3, torch.tensor(3), number, lambda names: {}, {"tries": torch.tensor([tries])})
    log_rho, moved = torch.tensor([LEAST_LOG + 1, math.log(0.5)]), torch.tensor([LEAST_LOG, math.log(0.5) - step])
    assert float(waits_on(torch.tensor([float(waits)]), log_rho, moved, 8, context)) == expected


def test_a_base_that_would_never_be_trained_is_refused_and_without_the_setting_nothing_is_sent():
    fed = blobs([9, 6], features=3)
    network = architecture("mlp:4", fed)
    with pytest.raises(UserError, match="leaves the base no round"):
        PFedEB(network, settle=5, base_rounds=5)
    assert "w.waits" not in fitted(PFedEB(network, **CHEAP), fed, 1).shared


@pytest.mark.parametrize(("rounds", "lines"), [(0, 0), (5, 1), (6, 0)])
def test_a_fit_that_may_end_with_its_base_untrained_says_so(rounds: int, lines: int, caplog: pytest.LogCaptureFixture):
    method = PFedEB(architecture("linear", blobs([9, 6], features=3)), settle=5, **CHEAP)
    warn_of_few_rounds(method, rounds)
    assert len(caplog.messages) == lines
    assert all("it may end with its base untrained" in line for line in caplog.messages)
