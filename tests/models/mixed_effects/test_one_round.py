"""A gaussian fit in one round: the iterative one's numbers, and who may send what it needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from support.baselines import begin_on_a_rank
from support.commands import Call
from support.mixed import DYESTUFF, fitted, table

from hierfl import mixed_model
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference.messages.codec import Quantise
from hierfl.inference.messages.form import Field
from hierfl.inference.messages.pipeline import Codec, Stage
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.receiver import Receiver
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.report.summary import effects_table

FORMULA = "y ~ 1 + x + (1 + x | site)"


@pytest.mark.parametrize("population", ["ml", "reml", "bayes"])
def test_it_is_the_iterative_fit(population: str) -> None:
    """Estimates, errors, what is known of the population, and the clients'."""
    df = table(12)
    df = df[df.groupby("site").y.transform("size") > 6]
    single, iterative = (fitted(df, FORMULA, population=population, draws=400, one_round=way) for way in (True, False))
    assert single.rounds == 1
    assert iterative.rounds > 5
    ours, theirs = effects_table(single.fitted)[0], effects_table(iterative.fitted)[0]
    rtol = 0.15 if population == "bayes" else 1e-7  # of a posterior all is made of draws, and these are others
    np.testing.assert_allclose(ours.estimate, theirs.estimate, rtol=rtol)
    np.testing.assert_allclose(ours.standard_error, theirs.standard_error, rtol=max(rtol, 1e-6))
    gap = (single.personal["b_mean"] - iterative.personal["b_mean"]).squeeze(1)
    spread = iterative.personal["b_root"].squeeze(1).norm(dim=-1)
    assert (gap.abs() < 0.25 * spread).all()  # 400 draws
    no_draws = [fitted(df, FORMULA, one_round=way).personal["b_mean"] for way in (True, False)]
    torch.testing.assert_close(*no_draws, rtol=1e-6, atol=1e-8)


def test_it_is_lme4s() -> None:
    for population, spread in (("reml", 42.0006), ("ml", 37.2603)):
        fit = mixed_model(DYESTUFF, "Yield ~ 1 + (1 | Batch)", population=population, one_round=True, draws=0)  # type: ignore[arg-type]
        table = fit.summary().table
        assert table.estimate.to_numpy() == pytest.approx([1527.5, spread, 49.5101], abs=6e-5)
        assert fit.run.rounds == 1


def test_a_client_of_few_rows_does_not_send_them() -> None:
    df = table(8)
    df = df[df.groupby("site").y.transform("size") > 6]
    small = pd.concat([df, df.head(4).assign(site="few")])
    with pytest.raises(UserError, match="client 'few' has 4 rows, which could be worked out from them: it needs 6"):
        mixed_model(small, FORMULA, one_round=True)
    with pytest.raises(UserError, match="it needs 30"):
        mixed_model(df, FORMULA, one_round=True, least_rows=30)
    fit = mixed_model(small, FORMULA, one_round=True, least_rows=4, draws=0)
    assert fit.summary().numbers["groups"] == small.site.nunique()
    with pytest.raises(UserError, match="least_rows"):
        mixed_model(df, FORMULA, least_rows=4)
    with pytest.raises(UserError, match="one_round is of a gaussian response, not a poisson one"):
        mixed_model(df.assign(y=1), FORMULA, family="poisson", one_round=True)


class Masked(MixedEffects):
    """Whose messages pass something on their way."""

    def pipeline(self) -> dict[str, Sequence[Stage]]:
        return {"effects": [Codec(Quantise())]}


def test_masks_refuse_it() -> None:
    """Where only sums may be seen there is nothing to look at one by one."""
    _, design = from_formula(table(5), FORMULA)
    method = Masked(design, one_round=True)
    shared = method.shared(InitialWeights.for_network(design, 0))
    with pytest.raises(UserError, match="looked at one by one: they pass no pipeline"):
        Exchange(method.exchange(), method.pipeline(), method.expand, shared)


def test_ranks_refuse_it() -> None:
    fed, design = from_formula(table(5), FORMULA)
    with pytest.raises(UserError, match="looked at one by one, and ranks send sums: take engine plate"):
        begin_on_a_rank(MixedEffects(design, one_round=True), fed)


def test_individual_messages_are_put_in_their_places() -> None:
    """Rejected ones are zeros, in whatever order they come."""
    _, design = from_formula(table(5), FORMULA)
    method = MixedEffects(design, one_round=True)
    shared = method.shared(InitialWeights.for_network(design, 0))
    exchange = Exchange(method.exchange(), {}, method.expand, shared)
    assert exchange.individual == ["effects"]
    receiver = Receiver(exchange, shared, 4, torch.device("cpu"), 0.0)
    form = exchange.sending["effects"].form
    assert isinstance(form["gram"], Field)

    def message(values: list[float]) -> dict:
        rows = torch.tensor(values).double()
        return {
            "effects": {
                name: rows.view(-1, *[1] * len(field.shape)).expand(-1, *field.shape).clone()
                for name, field in form.items()
            }
        }

    receiver.add(message([3.0, 1.0]), [3, 1])
    receiver.add(message([2.0, torch.nan]), [2, 0])
    total = receiver.sums.totals["effects"]
    assert total["gram"][:, 0].tolist() == [0, 1, 2, 3]
    assert total["counts"].tolist() == [6, 6]


def test_the_command_line_ends_after_one_round(hierfl: Call) -> None:
    table(8).query("site != 's00'").to_csv("mine.csv", index=False)
    how = ("run", "mixed-effects", "--data", "mine.csv", "--formula", FORMULA, "--set", "draws=40")
    code, out, err = hierfl(*how, "--set", "one_round=true", "--set", "least_rows=2")
    assert code == 0, err
    assert "7 clients, 1 round" in out
