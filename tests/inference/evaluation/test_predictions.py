"""Predictions of models of other shapes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from pyro.distributions import Normal, Poisson, StudentT
from support.federations import slopes
from torch.nn.functional import softplus

from hierfl import Federation, UserError
from hierfl.inference import Method, fit
from hierfl.inference.evaluation.inputs import raw_inputs
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, flat, param, sample


class Nested(Method):
    """s_j ~ N(0, 2^2), w_j | s_j ~ N(w + s_j, 0.05^2)."""

    def shared(self, start: InitialWeights) -> dict:
        return {"w": torch.ones_like(start.head)}

    def personal(self, start: InitialWeights) -> dict:
        d = len(start.head)
        return {"m": torch.zeros(1), "mu": torch.ones(d), "pi": torch.full((d,), -3.0)}

    def model(self, batch: object) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            s_j = sample("s_j", Normal(torch.zeros(1, dtype=batch.n.dtype), 2.0).to_event(1))
            w_j = sample("w_j", Normal(w + s_j, 0.05).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("s_j", Normal(param("m"), 0.01).to_event(1))
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))


def test_nested_latents_are_drawn_one_after_the_other() -> None:
    fed = slopes([6, 4, 1])
    run = fit(Nested(architecture("linear", fed, noise=0.5)), fed, rounds=0, dtype=torch.float64, progress=False)
    x = fed.x[:5]
    predictions = run.predict_new_client(x, draws=20_000)
    assert predictions.shape == (5, 2)
    design = torch.cat([x.double(), torch.ones(5, 1)], 1)
    variance = 4 * design.sum(1).square() + 0.05**2 * design.square().sum(1) + 0.25
    assert torch.allclose(predictions[:, 1], variance.sqrt(), rtol=0.03)
    prior = run.posterior(draws=4000).prior
    assert prior["s_j"].shape == (1, 4000, 3, 1)
    assert abs(float(prior["w_j"].values[0, :, 2, 0].std()) - (4 + 0.05**2) ** 0.5) < 0.1


@pytest.mark.parametrize("family", ["student", "poisson"])
def test_other_responses_are_scored_by_their_own_density(family: str) -> None:
    fed = slopes([8, 6, 7])
    if family == "poisson":
        fed = dataclasses.replace(fed, y=fed.y.abs().round())
    fed_test = [i[-3:] for i in fed.train]
    fed = dataclasses.replace(fed, test=fed_test, global_test=torch.cat(fed_test))

    @dataclass(frozen=True)
    class Own(Architecture):
        def likelihood(self, output: torch.Tensor) -> object:
            out = output.squeeze(-1)
            return StudentT(3.0, out, 0.5) if family == "student" else Poisson(out.exp())

    net = architecture("linear", fed)
    method = PFedVEM(Own(net.base, net.head, 1.0))
    run = fit(method, fed, rounds=1, dtype=torch.float64, progress=False)
    nll = []
    for j in range(3):
        x, y = fed.examples(fed.test[j])
        out = torch.cat([x, torch.ones(3, 1)], 1) @ run.personal["mu"][j]
        own = StudentT(3.0, out, 0.5) if family == "student" else Poisson(out.exp())
        nll.append(-own.log_prob(y).mean())
    row = run.last()
    assert row["pm_nll"] == pytest.approx(float(torch.stack(nll).mean()), rel=1e-9)
    assert row["pm_crps"] != row["pm_crps"]  # not given for other families


def test_point_guides_still_draw_responses(small: Federation, net: Architecture) -> None:
    draws = fit(FedPer(net), small, rounds=1, progress=False).posterior(draws=40).posterior_predictive["y"].values[0]
    assert (draws.std(0) > 0).mean() > 0.5


def test_a_prior_without_a_mean_is_said_so_before_the_fit(small: Federation, net: Architecture) -> None:
    class FlatGlobal(FedPer):
        @property
        def has_global_model(self) -> bool:
            return True

    with pytest.raises(UserError, match="the prior of 'w_j', Flat, cannot be put at its mean"):
        fit(FlatGlobal(net), small, rounds=1, progress=False)


def test_what_is_padded_is_nobody_elses(small: Federation) -> None:
    batch = small.batch([2, 0])
    assert torch.equal(batch.x[0, 2:], batch.x[0, :1].expand(21, -1))


def test_clients_with_unequal_test_sets_are_scored_on_their_own(small: Federation, net: Architecture) -> None:
    sizes = [12, 3, 7, 1, 0, 5, 9]
    uneven = dataclasses.replace(small, test=[i[:n] for i, n in zip(small.test, sizes, strict=True)])
    run = fit(PFedVEM(net), uneven, rounds=2, chunk=7, dtype=torch.float64, progress=False)
    table = run.clients
    assert table["n_test"].tolist() == sizes
    accuracies = []
    for j, n in enumerate(sizes):
        if not n:
            assert table["accuracy"].isna()[j]
            continue
        x, y = uneven.x[uneven.test[j]], uneven.y[uneven.test[j]]
        p = run.predict(x, j)
        accuracies.append(float((p.argmax(1) == y).double().mean()))
        assert table["accuracy"][j] == pytest.approx(accuracies[-1])
        assert table["nll"][j] == pytest.approx(float(-p.gather(1, y[:, None]).log().mean()))
        draws = run.predict(x, j, draws=20)
        assert draws.shape == (n, 3)
    assert run.last()["pm_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
    hits = sum(a * n for a, n in zip(accuracies, [n for n in sizes if n], strict=True))
    assert run.last()["pm_accuracy_pooled"] == pytest.approx(hits / sum(sizes))


def test_true_and_false_of_a_table_are_1_and_0_in_new_rows() -> None:
    df = pd.DataFrame({"y": [0.5, 1.5, 2.5, 4.0] * 3, "b": [True, False, True, False] * 3, "site": [*"aaaabbbbcccc"]})
    federation = Federation.from_frame(df, client="site", y="y", x=["b"], test=0.0, validation=0.0)
    inputs = raw_inputs(federation, df)
    assert inputs.flatten().tolist()[:4] == [1, 0, 1, 0]
    assert (raw_inputs(federation, df.assign(b=df.b.astype(int))) == inputs).all()
    for values, words in (
        (df.b + 1, "column 'b' holds 2, and True and False in the fit"),
        ("yes", "such as 'yes', and"),
    ):
        with pytest.raises(UserError, match=words):
            raw_inputs(federation, df.assign(b=values))
