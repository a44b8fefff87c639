"""A csv of one's own for any network method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError
from hierfl.experiments.build import build
from hierfl.experiments.config import Configuration
from hierfl.experiments.configure import configure
from hierfl.experiments.own_table import described

#: three hospitals of 20 rows
ROWS = pd.DataFrame(
    {
        "hospital": np.repeat(["a", "b", "c"], 20),
        "age": np.linspace(30.5, 80.25, 60),
        "arm": ["drug", "placebo", "none"] * 20,
        "outcome": ["died", "alive", "alive"] * 20,
        "stay": np.linspace(0.5, 9.1, 60),
        "visits": [0, 1, 2, 5] * 15,
    }
)
SAID = {"group": "hospital", "x": "arm,age", "rounds": 1, "network": "linear"}


def configured(folder: Path, df: pd.DataFrame = ROWS, method: str = "fedavg", **options: object) -> Configuration:
    df.to_csv(folder / "rows.csv", index=False)
    options = {name: value for name, value in {**SAID, **options}.items() if value is not None}
    return configure(method, str(folder / "rows.csv"), options, {})


def test_a_csv_is_what_the_frame_is(tmp_path: Path) -> None:
    ready, _ = build(configured(tmp_path, y="outcome", seed=3, validation_fraction=0.0))
    fed = ready.federation
    assert (fed.task, fed.classes, list(fed.ids), fed.sizes(), fed.sizes("test")) == (
        "classification", 2, ["a", "b", "c"], [16] * 3, [4] * 3,
    )  # fmt: skip
    x, y = fed.examples(fed.train[1])
    # Arm's three levels first, of which each row has one; age is standardised.
    assert x.shape == (16, 4)
    assert bool((x[:, :3].sum(1) == 1).all())
    assert x[:, 3].abs().max() < 4
    assert y.tolist() == [int(ROWS.outcome[int(row)] == "died") for row in ages(fed.x[fed.train[1]][:, 3].numpy())]
    assert described(fed) == "outcome: classification (alive, died); inputs: arm (3 levels), age"


def ages(values: np.ndarray) -> np.ndarray:
    """Rows by their ages."""
    return np.abs(ROWS.age.to_numpy()[None] - values[:, None]).argmin(1)


def test_a_run_is_repeated_from_its_configuration(tmp_path: Path) -> None:
    first, _ = build(configured(tmp_path, y="stay", x=None, group="hospital", na="drop"))
    assert first.federation.task == "regression"
    again, _ = build(configured(tmp_path, y="stay", x=None, group="hospital", na="drop"))
    assert first.engine.digest() == again.engine.digest()
    assert first.federation.about["columns"] == ["age", "arm", "outcome", "visits"]


def test_a_column_has_the_weights_of_the_rows(tmp_path: Path) -> None:
    rows = ROWS.assign(times=[1.0, 2.5, 3.0] * 20)
    ready, _ = build(configured(tmp_path, rows, y="outcome", x=None, weights="times", test_fraction=0.0))
    fed = ready.federation
    assert fed.about["columns"] == ["age", "arm", "stay", "visits"]
    assert fed.weights is not None
    assert sum(fed.amounts) == pytest.approx(fed.weights[np.concatenate(list(fed.train))].sum())
    with pytest.raises(UserError, match="fedpac counts rows"):
        build(configured(tmp_path, rows, "fedpac", y="outcome", weights="times"))


def test_small_clients_are_left_out_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.concat([ROWS, ROWS.iloc[:1].assign(hospital="alone")])
    with pytest.raises(UserError, match=r"1 of 4 clients has fewer than 2 rows \(alone\): --least-rows 2"):
        build(configured(tmp_path, rows, y="outcome"))
    ready, _ = build(configured(tmp_path, rows, y="outcome", least_rows=2))
    assert list(ready.federation.ids) == ["a", "b", "c"]
    assert "1 of 4 clients has fewer than 2 rows; left out with it: 1 row (alone)" in caplog.text


def test_rows_without_a_value_are_refused_or_dropped(tmp_path: Path) -> None:
    rows = ROWS.assign(age=ROWS.age.where(ROWS.index != 7))
    with pytest.raises(UserError, match="'age' has 1 missing value: --na drop"):
        build(configured(tmp_path, rows, y="outcome"))
    ready, _ = build(configured(tmp_path, rows, y="outcome", na="drop"))
    assert ready.federation.about["left_out"] == {"a": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"y": None}, "which column of .* is predicted: --y COLUMN"),
        ({"y": "stay", "group": None}, "which column of .* names the clients: --group COLUMN"),
        ({"y": "visits"}, r"4 different whole numbers \(0, 1, 2, 5\): say --task classification .* --task regression"),
        ({"y": "stay", "x": "age,weight"}, "unknown column 'weight'"),
        ({"y": "stay", "x": "age,hospital"}, "'hospital' names the clients"),
        ({"y": "stay", "x": "age,stay"}, "'stay' is the response"),
        ({"y": "stay", "clients": 4}, "--clients is not for .*: --group names the clients"),
        ({"y": "stay", "formula": "y ~ 1"}, "--formula is a mixed model's, and fedavg"),
        ({"y": "stay", "task": "ranking"}, "unknown value of --task 'ranking'"),
        ({"y": "outcome", "task": "regression"}, "holds no numbers"),
        ({"y": "stay", "least_rows": 30}, "no client has 30 rows; the largest has 20"),
        ({"y": "stay", "reading": {"reference": {"arm": "none"}}}, "--reference is a formula's"),
        ({"y": "stay", "method": "mixed-effects", "x": None, "formula": "stay ~ 1 + (1 | hospital)"},
         "--y is for a network's table, and mixed-effects has a formula"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(tmp_path: Path, options: dict, words: str) -> None:
    if options.get("method") == "mixed-effects":
        options |= {"network": None, "group": None}
    with pytest.raises(UserError, match=words):
        build(configured(tmp_path, **options))


def test_words_of_a_prediction_are_those_of_the_fit(tmp_path: Path) -> None:
    ready, _ = build(configured(tmp_path, y="outcome"))
    run = ready.run(progress=False)
    with pytest.raises(UserError, match="'arm' holds 'herbs', a level that the training rows lack; known: drug, none"):
        run.predict(ROWS.assign(arm="herbs"), "a")


def test_options_of_a_table_are_no_others(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--y is for a network's table, and digits is no table"):
        configure("fedavg", "digits", {"y": "label"}, {})
