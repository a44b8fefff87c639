"""The population of label shares, learned from sums."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.label_shares import LabelSharePopulation, step
from hierfl.ppl.label_shares import LabelShares

RULE = LabelSharePopulation("shares", "class_counts")


def learned(counts: torch.Tensor, rounds: int, reporting: int = 0) -> dict[str, torch.Tensor]:
    """After so many rounds; of all clients, or of so many in turns."""
    clients, classes = counts.shape
    equal = torch.full((classes,), 1 / classes, dtype=torch.float64)
    shared = {"shares.log_kappa": equal.log(), "shares.log_beta": equal.new_zeros(1), "shares.log_pooled": equal.log()}
    kept: dict[str, torch.Tensor] = {}
    each = reporting or clients
    for number in range(rounds):
        rows = torch.arange(each) + number * each % clients
        chunk = SimpleNamespace(values={"class_counts": counts[rows % clients, None]}, shared=shared)
        message = RULE.message(list(shared), chunk)  # type: ignore[arg-type]
        form = RULE.form(shared)
        for key, field in form.items():
            assert message[key].shape[1:] == field.shape
            assert message[key].dtype == field.dtype
            assert field.holds is None or bool(field.holds(message[key]).all())
        context = AggregationContext(clients, torch.tensor(float(each)), number + 1, lambda names: {}, kept)
        shared = RULE.update(shared, {k: v.sum(0) for k, v in message.items()}, context)
    return shared


def test_sizes_and_concentration_of_a_simulation_are_recovered() -> None:
    kappa = torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0, 0.5], dtype=torch.float64)
    pooled = torch.tensor([0.3, 0.2, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64)
    population = LabelShares(kappa.clamp_min(1e-12).log(), torch.tensor([1.5]).double().log(), pooled.log())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        counts = torch.distributions.Multinomial(60, population.sample(torch.Size([1500]))).sample()
    estimates = learned(counts, 40)
    torch.testing.assert_close(estimates["shares.log_kappa"].exp(), kappa, rtol=0, atol=0.05)
    assert float(estimates["shares.log_beta"].exp()) == pytest.approx(1.5, rel=0.1)
    torch.testing.assert_close(estimates["shares.log_pooled"].exp(), pooled, rtol=0, atol=0.02)
    # where it stays it is a maximum of the evidence and the prior, and of a sample of clients a round it is the same
    some = learned(counts, 150, reporting=100)
    assert float((some["shares.log_beta"] - estimates["shares.log_beta"]).abs()) < 0.1


def test_em_stays_where_evidence_and_prior_are_highest() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shares = torch.distributions.Dirichlet(torch.full((4,), 0.8, dtype=torch.float64)).sample(torch.Size([30]))
        counts = torch.distributions.Multinomial(25, shares).sample()
    estimates = learned(counts, 200)

    def height(away: float) -> float:
        log_beta = estimates["shares.log_beta"] + away
        given = LabelShares(estimates["shares.log_kappa"], log_beta, estimates["shares.log_pooled"], counts)
        return float(given.log_evidence.sum() - log_beta.square().sum() / 8)

    assert abs(height(1e-3) - height(-1e-3)) / 2e-3 < 1e-2
    assert max(height(-0.1), height(0.1)) < height(0.0)


def test_clients_of_one_class_say_little_of_beta() -> None:
    estimates = learned(torch.eye(5, dtype=torch.float64) * 12, 50)
    assert float(estimates["shares.log_beta"].abs()) < 0.5
    assert float(estimates["shares.log_kappa"][0].exp()) > 0.8


def test_a_step_is_where_its_bound_is_highest() -> None:
    up, down, log_beta = (torch.tensor([v], dtype=torch.float64) for v in (3.0, 8.0, 0.5))
    x = step(up, down, log_beta).requires_grad_()
    (up * x - down * x.exp() - (log_beta + x).square() / 8).sum().backward()
    assert float(x.grad.abs()) < 1e-9
