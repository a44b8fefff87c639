"""The page's method with two priors: its fixed one is pFedVEM's, and it is compared by its setting prior."""

from __future__ import annotations

import torch
from support.federations import blobs
from support.methods import ROOT

from hierfl import fit
from hierfl.experiments.methods import load
from hierfl.experiments.search.scales import priors_of
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

PATH = str(ROOT / "docs" / "low_rank.py")


def test_the_fixed_prior_is_pfedvems_to_the_bit() -> None:
    fed, cls = blobs([6, 3, 2, 4]), load(PATH).cls
    network = architecture("mlp:3", fed)
    settings = {"prior": "fixed", "sigma_0": 1.0, "head_lr": 0.01, "base_lr": 0.005}
    mine = fit(cls(network, **settings), fed, rounds=2, progress=False)
    theirs = fit(PFedVEM(network, **settings), fed, rounds=2, progress=False)
    for name in ("mu", "pi"):
        assert torch.equal(mine.personal[name], theirs.personal[name])
    assert mine.metrics.drop(columns="seconds")["pm_nll"].equals(theirs.metrics["pm_nll"])
    assert priors_of(PATH) == ["hierarchical", "fixed"]


def test_without_directions_it_is_a_gaussian_population_and_with_them_they_move() -> None:
    """At B = 0 the gradient by B is zero, by symmetry."""
    fed, cls = blobs([6, 3, 2, 4]), load(PATH).cls
    network = architecture("mlp:3", fed)
    for b_0, moves in ((0.0, False), (0.1, True)):
        run = fit(cls(network, b_0=b_0, base_epochs=1, particles=1), fed, rounds=2, progress=False)
        assert bool(run.shared["B"].any()) == moves
        assert bool(run.shared["log_rho"].any())  # begun at log 1
        last = run.metrics.iloc[-1]
        assert last["population_rho"] == run.shared["log_rho"].exp().item()
        assert (last["population_directions"] > 0) == moves
