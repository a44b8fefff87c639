"""PFedHB for regressions: a client's location and scale of the response."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support.baselines import fitted, rows_of
from support.federations import blobs, slopes
from support.outcome_simulations import entered
from torch.distributions import Normal

from hierfl import Federation, UserError
from hierfl.data.held_fold import held_fold
from hierfl.models import FedAvg, PFedHB
from hierfl.models.pfedhb.parts import NULLS, held_gains
from hierfl.models.pfedhb.report import part_lines
from hierfl.models.pfedhb.response_gains import ResponseJudge
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 1, "lr": 0.05, "batch": 8, "draws": 40}


@pytest.fixture(scope="module")
def fed() -> Federation:
    """Six clients, of which two have responses that are 2 above, and one that spread three times as wide."""
    plain = slopes([20, 30, 12, 25, 9, 40])
    y = plain.y.clone()
    for j in (0, 3):
        y[plain.train[j]] += 2
    y[plain.train[1]] += 3 * torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return dataclasses.replace(plain, y=y)


def test_the_base_is_fedavgs_and_predictions_have_a_clients_location_and_scale(fed: Federation) -> None:
    net = architecture("linear", fed, noise=0.5)
    run = fitted(PFedHB(net, **COMMON, heads="off"), fed, 6)
    plain = fitted(FedAvg(net, epochs=1, lr=0.05, batch=8), fed, 6)
    assert torch.equal(run.shared["w"], plain.shared["w"])
    x, names = fed.x[fed.train[1]], list(fed.ids)
    m, log_s = run.personal["o_j_mean"].reshape(6, 2).unbind(-1)
    at_mean = run.predict(x, names[1], draws=0)
    of_network = plain.predict(x, names[1], draws=0)
    torch.testing.assert_close(at_mean[:, 0], of_network[:, 0] + 0.5 * m[1])
    torch.testing.assert_close(at_mean[:, 1], (0.5 * log_s[1].exp()).expand(30))
    assert run.clients["sd"].argmax() == 1
    assert set(run.clients["shift"].nlargest(2).index) == {0, 3}
    assert run.posterior().posterior["o_j_dim_0"].values.tolist() == ["shift", "log scale"]
    drawn = run.predict(x, names[1], draws=40)
    torch.testing.assert_close(drawn, at_mean, atol=0.3, rtol=0.2)
    # a client of which nothing is known is at the population's mean, and one with rows where these are
    nu = float(run.shared["outcome.location"][0])
    new = run.predict_new_client(x, draws=0)
    torch.testing.assert_close(new[:, 0], of_network[:, 0] + 0.5 * nu)
    torch.testing.assert_close(run.predict_new_client(x, draws=0, given=(x, fed.y[fed.train[1]])), at_mean)


def test_a_learned_sd_has_one_scale_and_heads_are_beside(fed: Federation) -> None:
    net = architecture("linear", fed, noise="shared")
    run = fitted(PFedHB(net, **COMMON), fed, 4)
    assert {"shift", "sd"} <= set(run.clients)
    sd, units = float(run.shared["response_sd"]), fed.response_units.sd
    expected = units * sd * run.personal["o_j_mean"].reshape(6, 2)[:, 1].exp()
    assert run.clients["sd"].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert not any(k.startswith("shares") for k in run.shared)


def test_gains_are_log_densities_of_the_fold(fed: Federation) -> None:
    net = architecture("linear", fed, noise=0.5)
    method = PFedHB(net, **COMMON, heads="auto", outcome="auto")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn((6, 1, 1, 16, 2), generator=generator, dtype=torch.float64)
    w = torch.randn(net.head.d, generator=generator, dtype=torch.float64)
    heads = w + torch.randn((6, 1, 1, 16, net.head.d), generator=generator, dtype=torch.float64)
    location = torch.tensor([0.7, -0.4], dtype=torch.float64)
    chunk = rows_of(method, fed, **{"w": w, "o_j_draws": drawn, "w_j_draws": heads, "outcome.location": location})
    null = float(NULLS.index((0.63, False)))
    chunk = dataclasses.replace(chunk, shared={**chunk.shared, "parts.null": torch.tensor([null])})
    gains, nulls, rows = held_gains(chunk, method.auto, ResponseJudge)
    for row, client in enumerate(chunk.clients):
        x, y = fed.examples(held_fold(fed).rows[client])
        z = torch.cat([x, torch.ones(len(x), 1)], 1).double()
        f = z @ w

        def density(loc: torch.Tensor, scale: torch.Tensor | float, y: torch.Tensor = y) -> torch.Tensor:
            return Normal(loc, torch.as_tensor(scale).double()).log_prob(y)

        m, log_s = (v[:, None] for v in drawn[row, 0, 0].unbind(-1))
        sd = 0.5 / 0.63
        without = density(f, sd).sum()
        own = (density(f + 0.5 * m, sd * (log_s + 0.4).exp()).logsumexp(0) - math.log(16)).sum()
        own_heads = (density(heads[row, 0, 0] @ z.T, sd).logsumexp(0) - math.log(16)).sum()
        common = torch.maximum(without, density(f + 0.5 * 0.7, sd).sum())
        torch.testing.assert_close(gains[row], torch.stack([own_heads - without, own - common]))
        torch.testing.assert_close(nulls[row, int(null)], without - density(f, 0.5).sum())
        assert rows[row] == len(x)


@pytest.mark.parametrize(("truth", "seed"), [("none", 0), ("larger", 0)])
def test_the_outcome_enters_where_it_is_in_the_data(truth: str, seed: int) -> None:
    numbers = entered(truth, seed, judged=4, draws=40)
    assert numbers["entered_outcome"] == float(truth == "larger")
    assert "outcome: " in part_lines({**numbers, "rounds": 9})[0]


def test_what_does_not_go_together_is_one_line(fed: Federation) -> None:
    net = architecture("linear", fed, noise=0.5)
    for part in ("shares", "confusion", "features"):
        with pytest.raises(UserError, match=f"^{part}=auto is of data with labels, and this is a regression: {part}="):
            PFedHB(net, **{part: "auto"})
    with pytest.raises(UserError, match="^outcome=auto is of a regression, and this is data with labels: outcome=off"):
        PFedHB(architecture("linear", blobs([9, 9])), outcome="auto")
    with pytest.raises(UserError, match="one without: noise=shared .--learn-sd shared., or outcome=off"):
        PFedHB(architecture("linear", fed, noise="clients"))
    with pytest.raises(UserError, match="noise would hide: outcome=off"):
        fitted(PFedHB(net, **COMMON, heads="off"), fed, 1, dp="client", epsilon=8.0)
    own = fitted(PFedHB(architecture("linear", fed, noise="clients"), **COMMON, outcome="off", heads="off"), fed, 1)
    with pytest.raises(UserError, match="has no label shares"):
        own.predict(fed.x[:2], next(iter(fed.ids)), shares="uniform")
