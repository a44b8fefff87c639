"""Averaged predictions of PFedHB against Monte Carlo: shares and meanings of labels are integrated exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.run.client_draws import client_draws
from hierfl.inference.run.predictions import predicted
from hierfl.inference.run.result import Run
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture
from hierfl.ppl.label_confusion import LabelConfusion, confused
from hierfl.ppl.label_shares import log_offset

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8, "heads": "off", "draws": 50}
DRAWS = 20_000


@pytest.fixture(scope="module")
def fed() -> Federation:
    """Classes that overlap, so that inputs leave doubt."""
    fed = blobs([40, 30, 20], classes=3, test=8)
    return replace(fed, x=fed.x + 1.5 * torch.randn(fed.x.shape, generator=torch.Generator().manual_seed(1)))


@pytest.fixture(scope="module")
def run(fed: Federation) -> Run:
    """Its first client has one example of class 0 and one of class 2."""
    trained = fitted(PFedHB(architecture("linear", fed), **COMMON), fed, 3)
    counts = trained.personal["class_counts"].clone()
    counts[0] = torch.tensor([1.0, 0.0, 1.0])
    pi = sampled(trained.fitted.method.share_population(trained.shared, counts[:1]), 50)
    draws = trained.personal["log_pi_j_draws"].clone()
    draws[0, 0] = pi.squeeze(1).clamp_min(1e-30).log()
    return replace(trained, fitted=changed(trained.fitted, class_counts=counts, log_pi_j_draws=draws))


def changed(at: Fitted, **personal: Tensor) -> Fitted:
    """Other personal values."""
    return replace(at, personal={**at.personal, **personal})


def sampled(fn: Any, number: int) -> Tensor:
    """Draws; torch's global generator is given back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn: Tensor = fn.sample(torch.Size([number]))
        return drawn


def weighted(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of p(y | x, latents) over draws by p(x | latents), of log p(x, y | latents) (K, n, C); and unweighted.

    p(x | pi) is in proportion to the sum over classes.
    """
    p = log_p.double().softmax(-1)
    weight = log_p.double().logsumexp(-1, keepdim=True).exp()
    return (weight * p).sum(0) / weight.sum(0), p.mean(0)


def test_an_average_over_draws_is_that_by_their_likelihood_of_the_input(fed: Federation, run: Run) -> None:
    at, x = run.fitted, fed.x[fed.test[1][:6]]
    pi = sampled(at.method.share_population(at.shared, at.personal["class_counts"][0]), DRAWS)
    log_f = predicted(at, 0, x, 0, "pooled").log()
    neutral = at.method.neutral_shares(at.shared)
    exact, plain = weighted(log_f + log_offset(pi, neutral, at.method.settings.floor)[:, None])
    predictions = predicted(at, 0, x, 50)
    torch.testing.assert_close(predictions.double(), exact, atol=1e-2, rtol=0)
    assert (plain - exact).abs().max() > 0.03  # what draws said when they were averaged as they are
    torch.testing.assert_close(predictions, predicted(at, 0, x, 0))


def test_predictions_with_draws_agree_wherever_they_are_asked(fed: Federation, run: Run) -> None:
    at, x = run.fitted, fed.x[fed.test[1][:6]]
    # the posterior has its draws
    drawn = client_draws(at, [0], 50, torch.float64)["posterior"]["pi_j"][0, :, 0]
    assert drawn.shape == (50, 3)
    assert drawn.std(0).min() > 0.1
    # a client of which nothing is known has the population's mean shares
    torch.testing.assert_close(run.predict_new_client(x, draws=20), run.predict_new_client(x, draws=0))
    # shares that are estimated from the inputs are averaged over as they are: they know the inputs already
    several, single = (predicted(at, 0, x, k, "test") for k in (50, 1))
    assert not torch.allclose(several, single, atol=1e-3)
    with pytest.raises(UserError, match="predicts with more than one network and one head"):
        run.client_module("place-00", draws=4)


def test_meanings_of_labels_are_integrated_with_shares(fed: Federation, run: Run) -> None:
    refit = fitted(PFedHB(architecture("linear", fed), **COMMON, confusion="on"), fed, 2)
    at, x = refit.fitted, fed.x[fed.test[1][:6]]
    numbers = torch.tensor([0.9, 0.9, 1.0, 0.5], dtype=torch.float64)
    b = sampled(LabelConfusion(numbers, 3), DRAWS)
    some = changed(
        at, b_j_draws=b[None, None, None, :50].expand(3, 1, 1, 50, 9).to(at.personal["b_j_draws"]),
        b_j_mean=LabelConfusion(numbers, 3).expected.flatten().expand(3, 9).to(at.personal["b_j_mean"]),
        class_counts=run.fitted.personal["class_counts"],
    )  # fmt: skip
    pi = sampled(at.method.share_population(at.shared, some.personal["class_counts"][0]), DRAWS)
    log_f, log_m = refit.predict_new_client(x, draws=0).log(), at.shared["shares.log_pooled"]
    log_p = confused(log_f.expand(DRAWS, 1, *log_f.shape), b[:, None, None].float(), log_m).squeeze(1)
    exact, plain = weighted(log_p + log_offset(pi, at.method.neutral_shares(at.shared), 1e-4)[:, None])
    torch.testing.assert_close(predicted(some, 0, x, 50).double(), exact, atol=1e-2, rtol=0)
    assert (plain - exact).abs().max() > 0.02
    # a new client's are integrated over the population, which is not its centre, the identity
    new = replace(at, shared={**at.shared, "confusion.numbers": numbers})
    exact, _ = weighted(log_p)
    drawn = replace(refit, fitted=new).predict_new_client(x, draws=5)
    torch.testing.assert_close(drawn.double(), exact, atol=1e-2, rtol=0)
    assert (log_f.exp() - drawn).abs().max() > 0.02
