"""PFedHB: label shares with a population, on FedAvg's network."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs

from hierfl import Federation, UserError
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedAvg, PFedHB
from hierfl.nn.networks.build import architecture
from hierfl.ppl.label_shares import LabelShares

COMMON = {"epochs": 2, "lr": 0.1, "batch": 8}


@pytest.fixture(scope="module")
def skewed() -> Federation:
    """Twelve clients with two of four classes each, but for the last, which has all."""
    fed = blobs([40] * 12, classes=4, test=40)

    def kept(index: torch.Tensor, j: int) -> torch.Tensor:
        return index if j == 11 else index[(fed.y[index] == j % 4) | (fed.y[index] == (j + 1) % 4)]

    return dataclasses.replace(
        fed, train=[kept(t, j) for j, t in enumerate(fed.train)], test=[kept(t, j) for j, t in enumerate(fed.test)]
    )


def test_the_global_model_is_fedavgs_and_personal_ones_know_their_classes(skewed: Federation) -> None:
    net = architecture("mlp:5", skewed)
    hb, avg = (fitted(cls(net, **COMMON), skewed, 6) for cls in (PFedHB, FedAvg))
    for name, value in avg.shared.items():
        assert torch.equal(hb.shared[name], value)
    a, b = hb.evaluations[-1], avg.evaluations[-1]
    assert a["gm_nll"] == b["gm_nll"]
    assert a["gm_accuracy"] == b["gm_accuracy"]
    assert a["pm_nll"] < b["pm_nll"] - 0.05
    assert a["pm_accuracy"] >= b["pm_accuracy"]
    sizes = hb.shared["shares.log_kappa"].exp()
    assert sizes[1] > 0.7  # of two classes


def test_a_client_without_examples_has_the_global_model_and_labels_alone_move_it(skewed: Federation) -> None:
    run = fitted(PFedHB(architecture("mlp:5", skewed), **COMMON, heads="off", floor=0.01), skewed, 4)
    x, y = skewed.examples(skewed.train[0][None])
    x, y = x[0], y[0]
    unknown, own = run.predict_new_client(x, draws=0), run.predict(x, client=0, draws=0)
    known = run.predict_new_client(x, draws=0, given=(x, y))
    torch.testing.assert_close(known, own)  # the same examples, the same posterior
    population = run.fitted.method.shares.population(run.shared, run.personal["class_counts"][0])
    share = 0.99 * population.mean / run.shared["shares.log_pooled"].exp() + 0.01
    expected = unknown * share
    torch.testing.assert_close(own, expected / expected.sum(-1, keepdim=True))
    absent = population.counts == 0
    assert int(absent.sum()) == 2
    assert bool((own[:, absent] > 0).all())


def test_draws_are_of_the_shares_given_counts_and_predictions_at_their_mean(skewed: Federation) -> None:
    run = fitted(PFedHB(architecture("mlp:5", skewed), **COMMON, heads="off", draws=400), skewed, 2)
    x = skewed.examples(skewed.train[3][None])[0][0]
    drawn, f = run.personal["log_pi_j_draws"][3, 0].exp(), run.predict_new_client(x, draws=0)
    mean = run.fitted.method.share_population(run.shared, run.personal["class_counts"][3]).mean
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.02, rtol=0)
    share = (1 - 1e-4) * mean / run.shared["shares.log_pooled"].exp() + 1e-4
    torch.testing.assert_close(run.predict(x, client=3, draws=400), f * share / (f * share).sum(-1, keepdim=True))


@pytest.mark.cpu(5, "two fits until spreads have settled")
def test_heads_spread_where_clients_differ_in_more_than_shares_and_not_where_they_do_not() -> None:
    """All classes at every client: in one federation centres differ between clients, in the other all are dealt."""
    fed = blobs([80] * 12)  # whose test files have other centres
    pooled = torch.cat(list(fed.train))
    dealt = pooled[torch.randperm(len(pooled), generator=torch.Generator().manual_seed(0))].split(80)
    differs, alike = (
        dataclasses.replace(fed, train=[t[:40] for t in index], test=[t[40:] for t in index])
        for index in (fed.train, dealt)
    )
    by_name = {}
    for name, fed in (("differs", differs), ("alike", alike)):
        net = architecture("linear", fed)
        runs = [fitted(PFedHB(net, **COMMON, average=5, heads=heads), fed, 25) for heads in ("on", "off")]
        assert all(torch.equal(runs[0].shared[k], v) for k, v in runs[1].shared.items())  # nothing flows back
        rho = runs[0].shared["heads.log_rho"].exp()
        by_name[name] = rho.max(), [run.evaluations[-1]["pm_draws_nll"] for run in runs]
    rho, (own, none) = by_name["differs"]
    assert rho > 0.3
    assert own < none - 0.05
    assert by_name["alike"][0] < 0.1


def test_a_fixed_prior_stays_where_it_begins_and_the_network_is_the_same(skewed: Federation) -> None:
    """Posteriors given it are conditional on each client's data; only the shares of all rows together are counted."""
    net = architecture("mlp:5", skewed)
    parts = {"features": "on", "confusion": "on", "sigma_0": 0.4}
    method, avg = PFedHB(net, **COMMON, **parts, prior="fixed"), FedAvg(net, **COMMON)
    fixed, plain, begun = (
        fitted(method, skewed, 2),
        fitted(avg, skewed, 2),
        method.shared(InitialWeights.for_network(net, 0)),
    )
    moved = {name for name, value in begun.items() if not torch.equal(fixed.shared[name], value.to(fixed.shared[name]))}
    assert moved == {*plain.shared, "shares.log_pooled"}
    assert float(fixed.shared["heads.log_rho"][0].exp()) == pytest.approx(0.4)
    for name, value in plain.shared.items():
        assert torch.equal(fixed.shared[name], value)
    counts = fixed.personal["class_counts"].sum(0)
    torch.testing.assert_close(fixed.shared["shares.log_pooled"].exp(), (counts + 0.25) / (counts.sum() + 1))
    equal = begun["shares.log_kappa"], begun["shares.log_beta"], fixed.shared["shares.log_pooled"]
    own = fixed.personal["class_counts"][0]
    shares = fixed.fitted.method.share_population(fixed.shared, own).mean
    torch.testing.assert_close(shares, LabelShares(*equal, own).mean)
    assert (fixed.personal["w_j_draws"].std(2) > 0.05).any()


def test_what_a_fixed_prior_does_not_have_is_said(skewed: Federation) -> None:
    net = architecture("mlp:5", skewed)
    with pytest.raises(UserError, match="nodes=on changes nothing with prior=fixed"):
        PFedHB(net, prior="fixed", nodes="on")
    with pytest.raises(UserError, match="prior=fixed changes nothing where all parts are off"):
        PFedHB(net, prior="fixed", shares="off", heads="off")
    PFedHB(net, prior="fixed", shares="off", heads="off", confusion="on")
