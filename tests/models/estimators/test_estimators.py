"""Methods as estimators of scikit-learn: alone, in pipelines and searches, calibrated."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from hierfl import Federation, HierarchicalClassifier, HierarchicalRegressor, UserError, fit
from hierfl.models import METHODS, FedPer
from hierfl.nn.networks.build import architecture

SMALL: dict[str, Any] = {"method": "fedper", "network": "linear", "rounds": 6, "settings": {"lr": 0.3}}


def wards(rows: int = 40) -> pd.DataFrame:
    """Four wards; the sign of x says the outcome, the other way round in ward d."""
    rng = np.random.default_rng(0)
    ward = np.repeat(["a", "b", "c", "d"], rows)
    x, z = rng.normal(50, 10, 4 * rows), rng.normal(size=4 * rows)
    died = (x > 50) != (ward == "d")
    arm = np.where(rng.random(4 * rows) < 0.5, "drug", "placebo")
    stay = 5 + 0.2 * (x - 50) * np.where(ward == "d", -1, 1) + rng.normal(0, 0.3, 4 * rows)
    return pd.DataFrame({"ward": ward, "x": x, "z": z, "arm": arm, "died": np.where(died, "yes", "no"), "stay": stay})


def test_each_group_has_its_own_model() -> None:
    df = wards()
    X, groups = df[["x", "z"]].to_numpy(), df.ward.to_numpy()
    own = HierarchicalClassifier(**SMALL).fit(X, df.died, groups=groups)
    assert own.classes_.tolist() == ["no", "yes"]
    assert own.clients_.tolist() == ["a", "b", "c", "d"]
    assert own.score(X, df.died, groups=groups) > 0.95
    pooled = HierarchicalClassifier(**SMALL).fit(X, df.died)  # of all wards together nobody can say ward d's
    assert pooled.score(X, df.died) < 0.8
    p = own.predict_proba(X[::7], groups[::7])
    assert p.shape == (23, 2)
    assert np.allclose(p.sum(1), 1)
    assert (own.classes_[p.argmax(1)] == own.predict(X[::7], groups[::7])).all()
    # Rows of several clients in any order are each as alone.
    assert np.allclose(own.predict_proba(X[[159, 3]], ["d", "a"])[1:], own.predict_proba(X[[3]], ["a"]))


def test_it_is_the_fit_that_it_says() -> None:
    df = wards()
    X = df[["x", "z"]].to_numpy()
    regressor = HierarchicalRegressor(**SMALL, random_state=3).fit(X, df.stay, groups=df.ward)
    federation = Federation.from_arrays(
        X, df.stay.to_numpy(), df.ward, test=0.0, standardise=True, inputs="numbers", seed=3
    )
    run = fit(FedPer(architecture("linear", federation), lr=0.3), federation, 6, seed=3, progress=False, splits=(),
              dtype=torch.float64)  # fmt: skip
    mean, sd = regressor.predict(X[:9], df.ward[:9], return_std=True)
    both = run.predict(X[:9], "a").numpy()
    assert np.array_equal(mean, both[:, 0])
    assert np.array_equal(sd, both[:, 1])
    assert regressor.run_.rounds == 6


def test_a_column_of_clients_serves_searches_and_calibration() -> None:
    df = wards().sample(frac=1, random_state=0)
    X = df[["ward", "x", "z", "arm"]]
    classifier = HierarchicalClassifier(**SMALL, group="ward")
    assert classifier.fit(X, df.died).score(X, df.died) > 0.95
    assert cross_val_score(classifier, X, df.died, cv=2).mean() > 0.8
    search = GridSearchCV(classifier, {"settings": [{"lr": 0.3}, {"lr": 1e-6}]}, cv=2).fit(X, df.died)
    assert search.best_params_ == {"settings": {"lr": 0.3}}
    calibrated = CalibratedClassifierCV(classifier, cv=2).fit(X, df.died)
    assert calibrated.score(X, df.died) > 0.9
    regressor = HierarchicalRegressor(**SMALL, group=0)
    numbers = np.column_stack([df.ward.map(ord), df.x, df.z])
    assert regressor.fit(numbers, df.stay).score(numbers, df.stay) > 0.8
    assert regressor.clients_.tolist() == [str(ord(ward)) for ward in "dabc"]


def test_groups_pass_through_a_pipeline() -> None:
    df = wards()
    X = df[["x", "z"]].to_numpy()
    pipe = make_pipeline(StandardScaler(), HierarchicalClassifier(**SMALL))
    pipe.fit(X, df.died, hierarchicalclassifier__groups=df.ward)
    assert (pipe.predict(X, groups=df.ward) == df.died).mean() > 0.95


def test_clients_that_were_not_fitted() -> None:
    df = wards()
    X, groups = df[["x", "z"]].to_numpy(), df.ward.to_numpy()
    strict = HierarchicalRegressor("pfedvem", network="linear", rounds=2).fit(X, df.stay, groups=groups)
    with pytest.raises(UserError, match="client 'e' is not among those fitted: unseen='population' answers"):
        strict.predict(X[:2], ["e", "a"])
    with pytest.raises(UserError, match="whose rows are they"):
        strict.predict(X[:2])
    open_to_all = clone(strict).set_params(unseen="population").fit(X, df.stay, groups=groups)
    wanted = open_to_all.run_.predict_new_client(X[:2], draws=100)[:, 0]
    assert np.allclose(open_to_all.predict(X[:2]), wanted)
    assert np.allclose(open_to_all.predict(X[:2], ["e", "a"])[0], wanted[0])


def test_an_estimator_travels_to_another_process() -> None:
    df = wards(6)
    X = df[["x"]].to_numpy()
    made = HierarchicalRegressor(**SMALL).fit(X, df.stay, groups=df.ward)
    assert np.array_equal(pickle.loads(pickle.dumps(made)).predict(X, df.ward), made.predict(X, df.ward))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedaverage"}, "unknown method 'fedaverage'"),
        ({"method": "mixed-effects"}, "has no network: hierfl.mixed_model"),
        ({"method": 3}, "method is a name, such as 'pfedvem', or a class"),
        ({"group": "ward"}, "group='ward' is a column's name, and X is an array"),
        ({"settings": {"rate": 1}}, "rate"),
        ({"unseen": "guess"}, "unknown value of unseen 'guess'"),
    ],
)
def test_what_cannot_be_is_one_line(change: dict[str, Any], words: str) -> None:
    df = wards(5)
    X = df[["x", "z"]].to_numpy()
    with pytest.raises(UserError, match=words):
        HierarchicalClassifier(**{**SMALL, "rounds": 1, **change}).fit(X, df.died).predict(X)


def test_groups_are_said_once() -> None:
    df = wards(5)
    with pytest.raises(UserError, match="both say whose rows are"):
        HierarchicalClassifier(**SMALL, group="ward").fit(df[["ward", "x"]], df.died, groups=df.ward)
    with pytest.raises(UserError, match="clients of 3 rows, and X has 20"):
        HierarchicalClassifier(**SMALL).fit(df[["x"]], df.died, groups=["a", "b", "c"])
    with pytest.raises(UserError, match="y has one class"):
        HierarchicalClassifier(**SMALL).fit(df[["x"]], ["yes"] * 20)


@pytest.mark.cpu(2, "six small fits")
@pytest.mark.parametrize("estimator", [HierarchicalClassifier, HierarchicalRegressor])
def test_a_row_of_weight_two_is_two_rows_and_of_zero_none(estimator: type) -> None:
    """In full batches, scales of inputs and the response's unit included; a level or client without weight is none."""
    df, rng = wards(7), np.random.default_rng(1)
    weights = rng.integers(0, 4, len(df))
    df.loc[df.index[weights == 0][:2], "arm"] = "device"
    weights[df.ward == "c"] = 0
    repeated = df.loc[df.index.repeat(weights)]
    y = "died" if estimator is HierarchicalClassifier else "stay"
    X, answer = ["ward", "x", "arm"], "predict_proba" if y == "died" else "predict"
    made = estimator("pfedvem", group="ward", network="mlp:4", rounds=2, settings={"base_batch": 99})
    weighted = made.fit(df[X], df[y], sample_weight=weights)
    assert weighted.clients_.tolist() == ["a", "b", "d"]
    again, plain = (clone(made).fit(rows[X], rows[y]) for rows in (repeated, df[weights > 0]))
    actual, wanted, other = (getattr(fitted, answer)(repeated[X]) for fitted in (weighted, again, plain))
    assert np.allclose(actual, wanted, rtol=1e-8, atol=1e-10)
    assert not np.allclose(other, wanted, rtol=1e-3)
    expected = (
        (repeated[y] == weighted.predict(repeated[X])).mean() if y == "died" else again.score(repeated[X], repeated[y])
    )
    kept = weights > 0
    assert np.isclose(weighted.score(df[X][kept], df[y][kept], sample_weight=weights[kept]), expected)


def test_weights_that_cannot_be_are_one_line() -> None:
    df = wards(5)
    made = HierarchicalClassifier(**SMALL)
    for weights, words in (
        ([1.0] * 3, "sample_weight has 3 values, and X has 20 rows"),
        ([-1.0] + [1.0] * 19, "sample_weight has 1 value below zero or not finite"),
        ([np.inf, np.nan] + [1.0] * 18, "sample_weight has 2 values below zero or not finite"),
        ([0.0] * 20, "every sample_weight is zero"),
        (["two"] * 20, "sample_weight"),
    ):
        with pytest.raises(UserError, match=words):
            made.fit(df[["x"]], df.died, sample_weight=weights)
    counts = HierarchicalClassifier("scaffold", network="mlp:2", rounds=1)
    with pytest.raises(UserError, match="scaffold counts rows .*takes no weights"):
        counts.fit(df[["x"]], df.died, groups=df.ward, sample_weight=[2.0] * 20)
    counts.fit(df[["x"]], df.died, groups=df.ward, sample_weight=[1.0] * 20)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [HierarchicalClassifier, HierarchicalRegressor])
def test_scikit_learns_own_checks_pass(estimator: type) -> None:
    """All of them: no check is excepted."""
    state = np.random.get_state()  # noqa: NPY002  # the checks seed numpy's own generator
    checks = check_estimator(estimator(network="linear", rounds=10), on_skip=None)
    np.random.set_state(state)  # noqa: NPY002
    assert {row["status"] for row in checks} <= {"passed", "skipped"}
    assert len(checks) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].message_size is not None])
def test_any_method_of_networks_is_an_estimator(name: str) -> None:
    df = wards(12)
    X = df[["x", "z"]].to_numpy()
    made = HierarchicalClassifier(name, network="mlp:4", rounds=2).fit(X, df.died, groups=df.ward)
    assert np.allclose(made.predict_proba(X, df.ward).sum(1), 1, atol=1e-6)


def test_dates_are_no_responses() -> None:
    """They were fitted as nanoseconds since 1970."""
    x, days = np.arange(12.0).reshape(6, 2), np.arange(6).astype("datetime64[D]")
    for y in (days, days - days[0], pd.Series(pd.to_datetime(days)).dt.tz_localize("UTC")):
        with pytest.raises(UserError, match="y holds dates or time spans"):
            HierarchicalRegressor().fit(x, y)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        ({"z": "2,5"}, None, "column 'z' holds numbers with decimal commas as text"),
        ({"z": "08:30"}, None, "column 'z' holds times"),
        ({"z": pd.Timestamp("2020-01-01")}, None, "column 'z' of X holds dates or time spans"),
        ({"z": pd.Timedelta("1D")}, None, "column 'z' of X holds dates or time spans"),
        ({}, np.ma.masked_array(np.arange(8) % 2, np.arange(8) == 3), "y has 1 masked values"),
        ({}, np.array([1, "a"] * 4, dtype=object), "y holds labels of several types"),
    ],
)
def test_columns_that_may_be_two_things_are_one_line(X: dict[str, Any], y: Any, words: str) -> None:
    df = pd.DataFrame({"x": np.arange(8.0)}).assign(**X)
    with pytest.raises(UserError, match=words):
        HierarchicalClassifier(**SMALL).fit(df, ["no", "yes"] * 4 if y is None else y, groups=["a", "b"] * 4)


def test_a_client_that_is_spelled_like_a_fitted_one_is_not_unseen() -> None:
    df = wards(10)
    fitted = HierarchicalClassifier("pfedvem", network="linear", rounds=1, unseen="population").fit(
        df[["x"]], df.died, df.ward
    )
    with pytest.raises(UserError, match="groups holds 'A', which differs from 'a' of the fit in blanks, capitals"):
        fitted.predict(df[["x"]], df.ward.str.upper())
    assert len(fitted.predict(df[["x"]], df.ward + "1")) == len(df)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (["long", "short"], r"y holds words, such as 'long', .*: HierarchicalClassifier fits words"),
        (["1.5", "2.5"], r"y holds numbers as text, such as '1.5': y.astype\(float\)"),
        ([1.0, None], r"y contains NaN or missing values in 20 rows: leave these rows out"),
    ],
)
def test_responses_that_are_no_numbers_are_one_line(y: list[Any], words: str) -> None:
    df = wards(10)
    with pytest.raises(UserError, match=words):
        HierarchicalRegressor(**SMALL).fit(df[["x", "z"]], pd.Series(y * 20, dtype=object), groups=df.ward)
    with pytest.raises(UserError, match=r"group is the name of one column of X, not \['ward'\]"):
        HierarchicalRegressor(**SMALL, group=["ward"]).fit(df[["x", "ward"]], df.stay)
