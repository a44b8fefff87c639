"""The population's mean where only part of a precision is sent."""

from functools import partial

import torch

from hierfl.inference.local.laplace.forms import blocks_of, matrix_times
from hierfl.inference.local.laplace.population_terms import Groups, stretch
from hierfl.models.pfedeb.head_population import posterior_mean


def test_steps_are_shortened_by_what_the_groups_leave_out():
    """Six numbers whose correlations are 0.9: steps with variances alone are five times too long, and run away."""
    groups, d = Groups(6, 1), 6
    precision = 0.1 * torch.eye(d).double() + 0.9
    linear = torch.arange(1.0, 7.0).double()
    prior = torch.full((d,), 0.01, dtype=torch.float64)
    expected = torch.linalg.solve(precision + torch.diag(prior), linear)
    blocks = blocks_of(precision[None], groups.number)
    c = stretch(partial(matrix_times, precision[None]), blocks, groups, torch.ones(d, 1).double())

    def after(rounds: int, weights: torch.Tensor) -> torch.Tensor:
        m, kept = torch.zeros(d).double(), {}
        for _ in range(rounds):
            sums = {"gradient": linear - precision @ m, "precision": groups.packed(blocks[0]), "stretch": weights}
            kept |= {"linear": groups.split(m).flatten(), "precision": sums["precision"]}
            m = posterior_mean(m, prior, sums, groups, kept, torch.ones(1).double()).m
        return m

    # A sum over clients, and its weights.
    torch.testing.assert_close(after(3000, torch.stack([7 * c[0], torch.tensor(7.0)])), expected, rtol=1e-8, atol=1e-8)
    assert (after(3000, torch.tensor([7.0, 7.0])) - expected).abs().max() > 1


def test_w_moves_by_no_more_than_its_priors_size():
    """Newton's steps lead anywhere where likelihoods are flat; a base that is trained there does not come back."""
    groups, prior, m = Groups(1, 3), torch.tensor([0.25, 1.0, 4.0]).double(), torch.ones(3).double()
    sums = {
        "gradient": torch.tensor([50.0, -80.0, 20.0]).double(),
        "precision": groups.packed(torch.zeros(1, 3, 3).double()),
    }
    kept = {"linear": m * 0, "precision": sums["precision"]}
    move = posterior_mean(m, prior, sums, groups, kept, torch.ones(1).double()).m - m
    torch.testing.assert_close((prior * move.square()).mean(), torch.tensor(1.0).double())
    little = {**sums, "gradient": prior * m + 0.1}
    kept = {"linear": m * 0, "precision": sums["precision"]}
    mean = posterior_mean(m, prior, little, groups, kept, torch.ones(1).double()).m
    torch.testing.assert_close(mean, m + 0.1 / prior)
