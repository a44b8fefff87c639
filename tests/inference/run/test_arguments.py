"""Mistakes in calls from Python: each has one line with the argument and the way, and what is meant rightly works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import Federation, Run, UserError, mixed_model
from hierfl.inference import fit
from hierfl.inference.options import Options
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

N = 60
RNG = np.random.default_rng(0)
DF = pd.DataFrame({"h": [f"h{k}" for k in range(3)] * 20, "x": RNG.normal(size=N), "u": RNG.normal(size=N)})
DF["y"], DF["word"] = RNG.normal(size=N), np.where(DF.x > 0, "yes", "no")
NEW = DF.drop(columns="h")
TWO_NEW = NEW[:9].assign(h=["n1"] * 4 + ["n2"] * 5)


def federation(y: str = "y") -> Federation:
    return Federation.from_frame(DF, client="h", y=y, x=["x", "u"])


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {
        y: fit(PFedVEM(architecture("linear", fed)), fed, rounds=1, progress=False)
        for y in ("y", "word")
        if (fed := federation(y))
    }


def method(fed: Federation) -> PFedVEM:
    return PFedVEM(architecture("linear", fed))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda fed: fit(fed, method(fed)), r"the method first: fit\(method, federation\)"),
        (lambda fed: fit(PFedVEM, fed), r"PFedVEM is a class: fit\(PFedVEM\(architecture"),
        (lambda fed: fit("pfedvem", fed), "takes a method made with a network"),
        (lambda fed: fit(method(fed), DF), r"takes a Federation, such as .*, not DataFrame"),
        (lambda fed: fit(method(fed)), r"missing a required argument: 'federation'; it is called as fit\(method, fed"),
        (lambda fed: fit(method(fed), fed, epochs=3), r"'epochs' is no option of fit; .*: head_epochs, base_epochs"),
        (lambda fed: fit(method(fed), fed, round=3), "unknown option of fit 'round'; known: rounds, seed"),
        (lambda fed: fit(method(fed), fed, folder=3), "folder is a name or path, such as 'runs/first', not 3"),
        (lambda fed: fit(method(fed), fed, dtype=np.float64), "dtype: a fit is computed in torch.float32 or"),
        (lambda fed: fit(method(fed), federation("word")), r"1 output, .* 2 classes: architecture\(spec, federation\)"),
        (lambda fed: architecture("linear"), r"missing a required argument: 'federation'"),
        (lambda fed: Federation.from_frame("radon.csv", client="h", y="y", x=["x"]), r"pandas.read_csv\('radon.csv'\)"),
        (lambda fed: Federation.from_frame(DF, client="h", y="y", x=["x", "y"]), "'y' is the response, and cannot be"),
        (lambda fed: Federation.from_frame(DF, "h", "y", ["x"]), r"called as from_frame\(df, client=..., y=..., x=..."),
        (lambda fed: Federation.from_arrays(DF[["x"]], DF.y), "missing a required argument: 'client'"),
        (lambda fed: Federation.from_arrays(DF[["x", "word"]], DF.y, DF.h), "column 'word' holds no numbers; encode"),
        (lambda fed: mixed_model("radon.csv", "y ~ x + (1|h)"), r"pandas.read_csv\('radon.csv'\)"),
        (lambda fed: mixed_model(DF), "missing a required argument: 'formula'"),
    ],
)
def test_wrong_calls(call: Callable[[Federation], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(federation())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.predict("h0", DF), r"client is the name of one, as in predict\(x, client\), not DataFrame"),
        (lambda run: run.predict(DF[["x", "u"]]), r"lacks column .h., and no client is named: predict\(df"),
        (lambda run: run.predict(DF[["x", "u"]].to_numpy()), r"whose model\? .*: predict\(x, client=NAME\)"),
        (lambda run: run.predict(DF, interval=90), "interval is a share between 0 and 1, such as 0.9, or None, not 90"),
        (lambda run: run.predict(DF.assign(h="H0 ")), "differs from 'h0' of the fit in blanks, capitals"),
        (lambda run: run.predict(DF.assign(h="h9")), r"'h9' is not among those fitted: predict_new_client\(df\)"),
        (lambda run: run.predict(DF, tempered=True), "a temperature is a classification's"),
        (lambda run: run.predict(DF, "h9"), r"no client 'h9'; there are h0, h1, h2; predict_new_client\(x\) is for"),
        (lambda run: run.predict(DF[["x"]], "h0"), "lacks column 'u'; it has 'x'"),
        (lambda run: run.predict(DF.assign(u="1.5"), "h0"), "column 'u' .* text such as '1.5', .* pandas.to_numeric"),
        (lambda run: run.predict(DF.assign(u=["old", *[2.0] * 59]), "h0"), r"numbers, but also 'old' \(row 0\)"),
        (lambda run: run.predict(DF.assign(u=np.nan), "h0"), "column 'u' has 60 missing values: fill or drop"),
        (lambda run: run.predict(DF.assign(u=np.inf), "h0"), "column 'u' holds 60 infinite values"),
        (lambda run: run.predict(DF.assign(u=pd.Timestamp("2020-01-01")), "h0"), "'u' .* days since a first date"),
        (lambda run: run.predict(pd.concat([DF, DF], axis=1), "h0"), "two columns of the name 'x'"),
        (lambda run: run.predict(DF.head(0), "h0"), "no inputs to predict for"),
        (lambda run: run.predict(DF, "h0", draw=3), "unexpected keyword argument 'draw'"),
        (lambda run: run.predict_new_client(pd.concat([DF, TWO_NEW])), "was fitted, and others of the table were not"),
        (lambda run: run.predict_new_client(NEW, given=NEW.drop(columns="y")), "it lacks column 'y'"),
        (lambda run: run.predict_new_client(NEW, given=DF), "given has rows of several clients, and"),
        (lambda run: run.predict_new_client(TWO_NEW, given=NEW), "given takes a table whose column 'h'"),
        (lambda run: run.predict_new_client(TWO_NEW, given=TWO_NEW[:3]), "given has no rows of client 'n2'"),
        (lambda run: run.predict_new_client(NEW, given=(DF, DF.word)), "the y of given= holds .*, not numbers"),
        (lambda run: run.metrics(), r"a table, not a function: write run.metrics"),
        (lambda run: run.history(), "a table, not a function"),
        (lambda run: run.clients(), "a table, not a function"),
        (lambda run: run.participation(), "a table, not a function"),
        (lambda run: run.posterior(clients="h"), "no client 'h'"),
    ],
)  # fmt: skip
def test_wrong_questions(runs: dict[str, Run], call: Callable[[Run], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(runs["y"])


def test_a_tables_columns_come_in_any_order_and_stride(runs: dict[str, Run]) -> None:
    run = runs["y"]
    wanted = run.predict(DF, "h0")
    for table in (DF[["y", "u", "x"]], DF[DF.columns[::-1]], DF.astype({"x": "Float64"})):
        pd.testing.assert_frame_equal(run.predict(table, "h0"), wanted)
    arrays = run.predict(DF[["x", "u"]].to_numpy(), "h0")
    assert np.array_equal(wanted["mean"], arrays[:, 0].numpy())
    reversed_too = Federation.from_frame(DF, client="h", y="y", x=["u", "x"])
    other = fit(method(reversed_too), reversed_too, rounds=0, progress=False)
    assert np.array_equal(other.predict(DF, "h0")["mean"], other.predict(DF[["u", "x"]].to_numpy(), "h0")[:, 0])
    arrays = Federation.from_arrays(DF[["x", "u"]], DF.y, DF.h)
    again = fit(method(arrays), arrays, rounds=0, progress=False)
    assert np.array_equal(
        again.predict(DF[["u", "x"]], "h0")["mean"], again.predict(DF[["x", "u"]].to_numpy(), "h0")[:, 0]
    )


def test_a_new_clients_labels_are_written_as_the_others(runs: dict[str, Run]) -> None:
    run, few = runs["word"], DF.tail(9)
    assert run.fitted.federation.about["labels"] == ["no", "yes"]
    frames = [run.predict_new_client(NEW, given=(few, y)) for y in (few.word, [*few.word], (few.word == "yes") * 1)]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    pd.testing.assert_frame_equal(frames[0], frames[2])
    with pytest.raises(UserError, match="holds 'perhaps', which is no label of the federation; known: no, yes"):
        run.predict_new_client(NEW, given=(few, ["perhaps"] * 9))


def test_what_is_meant_rightly_works(tmp_path, runs: dict[str, Run]) -> None:
    fed = federation()
    folder = str(tmp_path / "run")
    numbers: Any = {"rounds": np.int64(1), "seed": np.int32(0), "device": torch.device("cpu")}
    run = fit(method(fed), fed, folder=folder, progress=False, **numbers)
    assert (tmp_path / "run" / "checkpoint.json").is_file()
    assert isinstance(run.options.rounds, int)
    assert run.options.device == "cpu"
    pd.testing.assert_frame_equal(run.predict(DF, "h0"), runs["y"].predict(DF, np.str_("h0")))
    pd.testing.assert_frame_equal(run.predict(DF, np.int64(1), draws=np.int64(2)), run.predict(DF, "h1", draws=2))
    assert [*runs["y"].posterior(draws=2, clients="h1").posterior.client.values] == ["h1"]
    column = Federation.from_arrays(DF[["x"]].to_numpy(), DF[["y"]], DF[["h"]])
    assert torch.equal(column.y, Federation.from_arrays(DF[["x"]].to_numpy(), DF.y, DF.h).y)
    assert type(run.metrics.copy()) is pd.DataFrame


def test_options_of_numpys_types_are_pythons() -> None:
    options = Options(rounds=np.int16(3), participation=np.float32(0.5), evaluate_every=np.uint8(2))  # type: ignore[arg-type]
    assert (options.rounds, options.participation, options.evaluate_every) == (3, 0.5, 2)
    with pytest.raises(UserError, match="rounds must be a whole number"):
        Options(rounds=np.float64(3))  # type: ignore[arg-type]


def test_other_packages_attributes_point_to_the_way() -> None:
    fitted: Any = mixed_model(DF, "y ~ x + (1 | h)", draws=0)
    for name, way in (("coef", "params"), ("cov_params", "vcov"), ("resid", "residuals"), ("llf", "numbers")):
        assert not hasattr(fitted, name)
        with pytest.raises(UserError, match=f"no '{name}': .*{way}"):
            getattr(fitted, name)
    with pytest.raises(AttributeError, match="no attribute 'else'"):
        _ = getattr(fitted, "else")
    with pytest.raises(UserError, match=r"missing a required argument: 'df'; it is called as predict\(df"):
        fitted.predict()
