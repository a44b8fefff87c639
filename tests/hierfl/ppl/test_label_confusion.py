"""A population of label confusions: the posterior beside sums over all assignments, and draws."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.distributions import Dirichlet

from hierfl.ppl.label_confusion import ConfusionGiven, LabelConfusion, concentrations, confused, given_densities

NUMBERS = torch.tensor([0.2, 0.6, 1.5, 0.4], dtype=torch.float64)


def log_multinomial(n: Tensor, alpha: Tensor) -> Tensor:
    """The logarithm of a Dirichlet-multinomial's probability of classes in one order."""
    lg = torch.lgamma
    return lg(alpha.sum()) - lg(alpha.sum() + n.sum()) + (lg(alpha + n) - lg(alpha)).sum()


def exact(log_d: Tensor, y: Tensor, c: int) -> tuple[float, Tensor, Tensor]:
    """P(s = 1), P(t = 1 | s = 1) and E[B], by sums over all assignments of examples to classes."""
    share, some = float(NUMBERS[0]), float(NUMBERS[1])
    prior, eye = concentrations(NUMBERS, c), torch.eye(c, dtype=torch.float64)
    both, which, own = torch.tensor(1.0).double(), [], []
    for label in range(c):
        rows = log_d[y == label]
        total, mean = torch.tensor(0.0).double(), torch.zeros(c).double()
        for z in itertools.product(range(c), repeat=len(rows)):
            n = torch.bincount(torch.tensor(z, dtype=torch.long), minlength=c).double()
            weight = (log_multinomial(n, prior[label]) + sum(rows[i, k] for i, k in enumerate(z))).exp()
            total, mean = total + weight, mean + weight * (prior[label] + n) / (prior[label] + n).sum()
        same = rows[:, label].sum().exp()
        ratio = some * total / same / (1 - some + some * total / same)
        both = both * (1 - some + some * total / same)
        which.append(ratio)
        own.append(mean / total)
    whether = float(share * both / (1 - share + share * both))
    moved = (whether * torch.stack(which))[:, None]
    return whether, torch.stack(which), (1 - moved) * eye + moved * torch.stack(own)


def test_the_posterior_is_the_sum_over_all_assignments_where_classes_are_sure_and_near_it_elsewhere() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    z = torch.tensor([1, 1, 0, 2, 2, 2, 0])
    for sure, tolerance in ((40.0, 1e-9), (2.0, 0.11)):
        log_d = (sure * torch.nn.functional.one_hot(z, 3).double()).log_softmax(-1)
        # A second client whose labels are its classes, padded.
        clean = (sure * torch.nn.functional.one_hot(y, 3).double()).log_softmax(-1)
        mask = torch.ones(2, 7, dtype=torch.bool)
        mask[1, 5:] = False
        posterior = given_densities(NUMBERS, torch.stack([log_d, clean]), torch.stack([y, y]), mask, 60)
        for row, (d, labels) in enumerate(((log_d, y), (clean[:5], y[:5]))):
            whether, which, mean = exact(d, labels, 3)
            torch.testing.assert_close(posterior.mean[row], mean, atol=tolerance, rtol=0)
            torch.testing.assert_close(posterior.which[row], which, atol=tolerance, rtol=0)
            assert -2 * tolerance < float(posterior.whether[row]) - whether < 1e-9  # a bound of the evidence


def test_a_permutation_is_reached_from_a_population_at_the_identity_and_draws_have_the_mean() -> None:
    order, numbers = torch.tensor([2, 0, 3, 1]), torch.tensor([0.05, 0.5, 5.0, 0.05]).double()
    z = torch.arange(4).repeat(8)
    log_d = (0.9 * torch.nn.functional.one_hot(z, 4).double() + 0.025).log()[None]
    posterior = given_densities(numbers, log_d, order[z][None], None, 30)
    assert float(posterior.whether) > 0.99
    assert torch.equal(posterior.mean[0][order].argmax(-1), torch.arange(4))
    clean = given_densities(numbers, log_d, z[None], None, 30)
    assert float(clean.whether) < 0.05
    torch.testing.assert_close(clean.mean[0], torch.eye(4).double(), atol=0.02, rtol=0)
    few = given_densities(torch.tensor([0.5, 0.5, 1.0, 0.5]).double(), log_d[:, :6], order[z][None, :6], None, 30)
    u = torch.rand((4000, 1, 1 + 4 + 32), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = few.draws(u.clamp(1e-12, 1 - 1e-12))
    torch.testing.assert_close(draws.mean(0), few.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(draws.sum(-1), torch.ones(4000, 1, 4).double())


def test_labels_have_their_probabilities_and_the_identity_changes_no_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    f, m = torch.randn((2, 5, 3), generator=rng), torch.tensor([0.5, 0.3, 0.2])
    b = torch.rand((2, 3, 3), generator=rng).log().neg()
    b = b / b.sum(-1, keepdim=True)
    b[1] = torch.eye(3)
    logits = confused(f, b.flatten(1)[:, None], m.log())
    assert torch.equal(logits[1], f[1])
    expected = m * ((f[0].softmax(-1) / m) @ b[0].T)
    torch.testing.assert_close(logits[0].softmax(-1), expected / expected.sum(-1, keepdim=True))


def test_the_populations_draws_have_its_density_and_its_spike_is_where_nothing_is_known() -> None:
    prior = LabelConfusion(NUMBERS, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = prior.sample(torch.Size([4000])).unflatten(-1, (3, 3))
    torch.testing.assert_close(drawn.mean(0), prior.expected, atol=0.02, rtol=0)
    assert torch.equal(prior.mean.unflatten(-1, (3, 3)), torch.eye(3).double())
    spike = 0.8 + 0.2 * 0.4**3
    torch.testing.assert_close(prior.log_prob(prior.mean).exp(), torch.tensor(spike).double())
    row = torch.tensor([0.2, 0.5, 0.3]).double()
    value = torch.stack([row, *torch.eye(3).double()[1:]]).flatten()
    density = Dirichlet(torch.tensor([1.5, 0.4, 0.4]).double()).log_prob(row).exp()
    torch.testing.assert_close(prior.log_prob(value).exp(), 0.2 * 0.6 * density * 0.4**2)
    q = ConfusionGiven(drawn[:8].flatten(1)[None, None], prior.mean[None])
    assert torch.equal(q.expand(torch.Size([2])).mean[1], prior.mean)
