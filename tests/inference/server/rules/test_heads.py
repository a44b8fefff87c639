"""The population's mean where only part of a precision is sent."""

import torch

from hierfl.inference.local.laplace.population_terms import Groups, stretch
from hierfl.inference.server.rules.heads import posterior_mean


def test_steps_are_shortened_by_what_the_groups_leave_out():
    """Six numbers whose correlations are 0.9: steps with variances alone are five times too long, and run away."""
    groups, d = Groups(6, 1), 6
    precision = 0.1 * torch.eye(d).double() + 0.9
    linear = torch.arange(1.0, 7.0).double()
    prior = torch.full((d,), 0.01, dtype=torch.float64)
    expected = torch.linalg.solve(precision + torch.diag(prior), linear)
    blocks = groups.blocks(precision[None])
    c = stretch(precision[None], blocks, groups)

    def after(rounds: int, weights: torch.Tensor) -> torch.Tensor:
        m, kept = torch.zeros(d).double(), {}
        for _ in range(rounds):
            said = {"gradient": linear - precision @ m, "precision": groups.packed(blocks[0]), "stretch": weights}
            kept |= {"linear": groups.split(m).flatten(), "precision": said["precision"]}
            m = posterior_mean(m, prior, said, groups, kept, torch.ones(1).double()).m
        return m

    # (a sum over clients, and its weights)
    torch.testing.assert_close(after(3000, torch.stack([7 * c[0], torch.tensor(7.0)])), expected, rtol=1e-8, atol=1e-8)
    assert after(30, torch.tensor([7.0, 7.0])).abs().max() > 1e6
