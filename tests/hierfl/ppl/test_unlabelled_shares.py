"""Label shares given inputs without labels, beside the sum over all labellings."""

from __future__ import annotations

import itertools

import pytest
import torch

from hierfl.ppl.label_shares import LabelShares
from hierfl.ppl.unlabelled_shares import shares_given_inputs
from hierfl.rng import ClientNoise, client_keys

CLASSES, INPUTS, COPIES = 3, 4, 300


@pytest.mark.parametrize(("pooled", "within"), [([1 / 3] * 3, 0.006), ([0.5, 0.3, 0.2], 0.02)])
def test_draws_are_of_the_posterior_given_inputs(pooled: list[float], within: float) -> None:
    """Exact where classes are equally frequent; elsewhere the population's own approximation is in it, too."""
    population = LabelShares(
        torch.tensor([0.2, 0.5, 0.3]).double().log(), torch.tensor([0.3]).double(), torch.tensor(pooled).double().log()
    )
    log_likelihood = 1.5 * torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight, mean, labels = torch.zeros(()), torch.zeros(CLASSES), torch.zeros(INPUTS, CLASSES)
    for z in itertools.product(range(CLASSES), repeat=INPUTS):
        counts = torch.bincount(torch.tensor(z), minlength=CLASSES).double()
        given = population.given(counts)
        p = (given.log_evidence + log_likelihood[range(INPUTS), z].sum()).exp()
        weight, mean = weight + p, mean + p * given.mean
        labels[range(INPUTS), z] += p
    noise = ClientNoise(client_keys(range(COPIES)), (0, "shares"), 1, dtype=torch.float64)
    drawn = shares_given_inputs(population, log_likelihood.expand(COPIES, -1, -1), None, noise, 100, doubt=0.0)
    torch.testing.assert_close(drawn.mean((0, 1)), mean / weight, atol=within, rtol=0)
    # what predictions are averaged over the draws uses an input once
    predicted = (drawn[:, :, None] * log_likelihood.exp()).flatten(0, 1)
    predicted = (predicted / predicted.sum(-1, keepdim=True)).mean(0)
    torch.testing.assert_close(predicted, (labels / weight).double(), atol=within, rtol=0)


def test_a_few_sure_errors_add_no_class_and_padding_is_no_input() -> None:
    """Of 60 inputs three are surely of a class that the client lacks; rows are the same clients, padded or not."""
    known = torch.tensor([0.01, 0.97, 0.01, 0.01]).double()
    population = LabelShares(known.log(), torch.tensor([1.0]).double(), torch.zeros(4).double())
    log_likelihood = torch.full((60, 4), -12.0).double()
    log_likelihood[:30, 0], log_likelihood[30:57, 1], log_likelihood[57:, 2] = 0.0, 0.0, 0.0
    noise = lambda: ClientNoise(client_keys(["a"]), (0, "shares"), 1, dtype=torch.float64)  # noqa: E731
    drawn = shares_given_inputs(population, log_likelihood[None], None, noise(), 100)
    assert drawn[..., 2].mean() < 0.02
    assert shares_given_inputs(population, log_likelihood[None], None, noise(), 100, doubt=0.0)[..., 2].mean() > 0.04
    padded = torch.cat([log_likelihood, log_likelihood[:40]])[None]
    mask = torch.arange(100)[None] < 60
    assert torch.equal(drawn, shares_given_inputs(population, padded, mask, noise(), 100))
