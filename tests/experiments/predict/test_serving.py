"""`hierfl serve RUN`: the answers, and the checks, of `hierfl predict`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.run_folders import Finished

import hierfl
from hierfl import UserError
from hierfl.experiments.predict.asked_rows import parsed, rows_of

pytest.importorskip("fastapi")
testclient = pytest.importorskip("fastapi.testclient")
#: pictures of the digits' scale
X = np.linspace(0, 1, 4 * 64).reshape(4, 1, 8, 8)


@pytest.fixture
def served() -> Callable[[Path], Any]:
    """A client of the application of a run."""
    from hierfl.experiments.predict.serving import application

    return lambda folder: testclient.TestClient(application(folder), base_url="http://127.0.0.1")


def test_a_request_has_a_largest_number_of_rows() -> None:
    for entries in ({"rows": [{"a": 1}] * 20_001}, {"x": [[1.0]] * 20_001}):
        with pytest.raises(UserError, match="at most 20,000 rows, not 20,001: send several"):
            rows_of(entries, {"rows", "x"})
    assert rows_of({"x": [[1.0]] * 20_000}, {"x"}).x.shape == (20_000, 1)


def test_arrays_are_answered_as_by_the_run(finished: Finished, served: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = finished("pfedvem", tmp_path / "run")
    client, run = served(folder), hierfl.load_run(folder)
    assert client.get("/health").json()["status"] == "ok"
    card = client.get("/card").json()
    assert (card["method"], card["clients"], card["takes"]) == ("pfedvem", 3, {"shape": [1, 8, 8], "type": "float32"})
    assert 0 <= card["metrics"]["pm_accuracy"] <= 1

    rows = client.post("/predict", json={"x": X.tolist(), "client": ["2", "0", "2", "1"]}).json()["predictions"]
    assert [row["client"] for row in rows] == ["2", "0", "2", "1"]
    wanted = run.predict(X[[0, 2]], "2").numpy()
    probabilities = [[row[f"p({k})"] for k in range(10)] for row in (rows[0], rows[2])]
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)
    asked = {"x": X.tolist(), "new": True, "given": {"x": X.tolist(), "y": [0, 1, 2, 3]}}
    rows = client.post("/predict", json=asked).json()["predictions"]
    wanted = run.predict_new_client(X, given=(X, np.arange(4)))[:, 3].numpy()
    np.testing.assert_allclose([row["p(3)"] for row in rows], wanted, rtol=1e-5)

    refused = {
        'whose rows are these? the request does not say: "client": NAME, or "new": true': {"x": X.tolist()},
        '"interval" is a probability between 0 and 1, not 2': {"x": X.tolist(), "client": "0", "interval": 2},
        "no client '9' was fitted": {"x": X.tolist(), "client": "9"},
        "inputs reach from 0 to 16": {"x": (16 * X).tolist(), "client": "0"},
        "the run is of arrays": {"rows": [{"a": 1}], "client": "0"},
        "unknown key 'out'": {"x": X.tolist(), "out": "/etc/passwd"},
        '"draws" is from 0 to 100,000, not 1,000,000,000': {"x": X.tolist(), "client": "0", "draws": 10**9},
        "draws is int in a request, not str": {"x": X.tolist(), "client": "0", "draws": "3"},
        "a request is a json object, such as": [1],
    }
    for words, request in refused.items():
        answer = client.post("/predict", json=request)
        assert (answer.status_code, words in answer.json()["error"]) == (422, True), answer.text
    other = testclient.TestClient(client.app, base_url="http://example.org")
    assert other.get("/card").status_code == 400


@pytest.mark.cpu(3, "a mixed model with its draws")
def test_rows_of_a_mixed_model_are_answered(
    hierfl: Call, served: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hierfl import load_run

    rng, n = np.random.default_rng(0), 60
    df = pd.DataFrame({"x": rng.normal(size=n), "site": np.arange(n) % 5})
    df["y"] = 1 + df.x + rng.normal(size=5)[df.site] + rng.normal(size=n)
    df.to_csv("t.csv", index=False)
    assert hierfl("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ x + (1 | site)", "--quiet",
                  "--out", "m")[0] == 0  # fmt: skip
    client = served(Path("m"))
    rows = df.drop(columns="y").head(6)
    answer = client.post("/predict", json={"rows": rows.to_dict("records"), "interval": 0.5}).json()["predictions"]
    wanted = load_run("m").predict(rows.astype({"site": str}), interval=0.5)
    pd.testing.assert_frame_equal(pd.DataFrame(answer), wanted, check_dtype=False)
    coded = client.post("/predict", json={"rows": [{"site": "1", "x": -999}, {"site": "1", "x": 0.5}]}).json()
    code, far = coded["warnings"]
    assert code == "column 'x' is -999 in 1 row, which may be a missing value: it is predicted as a number"
    assert far.startswith("column 'x' is -999 in 1 row, ")
    assert "standard deviations from the mean of the fitted rows" in far
    beside = {"rows": [{"site": "1", "x": x} for x in (0.5, -999, 1.5, 0.2)]}
    assert "'x' holds -999 in 1 row" in client.post("/predict", json=beside).json()["error"]
    assert len(coded["predictions"]) == 2
    assert client.post("/predict", json={"rows": [{"site": "1", "x": -2.5}]}).json()["warnings"] == []
    Path("new.csv").write_text("site,x\n1,-999\n")
    caplog.clear()
    assert hierfl("predict", "m", "--data", "new.csv")[0] == 0
    assert "column 'x' is -999 in 1 row" in caplog.text
    card = client.get("/card").json()
    assert card["takes"] == {"client": "site", "formula": "y ~ x + (1 | site)"}
    text = json.dumps(card)
    assert not any(str(value) in text for value in df.y)
    texts = {"say rows, not x": {"x": [[1.0]]}, "lacks": {"rows": [{"site": 1}]}, "write them without": "1.5",
             "or leave such rows out": None, "holds an object": {}}  # fmt: skip
    for words, request in texts.items():
        rows = request if isinstance(request, dict) and request else {"rows": [{"site": "1", "x": request}]}
        error = client.post("/predict", json=rows).json()["error"]
        assert words in error
        assert "df" not in error


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "say one of rows"),
        ({"rows": []}, "rows is a list of objects"),
        ({"rows": [{"a": [1]}]}, "column 'a' holds a list"),
        ({"rows": [{"a": 1}], "client": ["0"]}, "client is one name for all"),
        ({"x": [[1], [1, 2]]}, "x has entries of several shapes"),
        ({"x": [[1]], "client": ["0", "1"]}, "there are 1 x, and 2 client"),
    ],
)
def test_what_is_no_row_is_one_line(entries: dict[str, Any], words: str) -> None:
    with pytest.raises(hierfl.UserError, match=words):
        rows_of(entries, {"x", "rows", "client"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"rows": [{"x": 0.5, "x": 5}]}', "has 'x' twice"),
        ('{"a": ["\\ud800"]}', "surrogates not allowed"),
        ('{"a": 1' + "0" * 400 + "}", "401 digits"),
        ("[" * 100_000, "a request is a json object"),
    ],
)
def test_json_that_may_be_two_things_is_one_line(text: str, words: str) -> None:
    with pytest.raises(hierfl.UserError, match=words):
        parsed(text.encode())


def test_letters_beyond_16_bits_are_no_halves() -> None:
    assert parsed(b'{"a": "\\ud83d\\ude00", "b": 12}') == {"a": "\U0001f600", "b": 12}


def test_without_its_extra_it_says_what_to_install(hierfl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = hierfl("serve", "run")
    assert (code, err) == (2, "error: hierfl serve needs fastapi and uvicorn: pip install 'hierfl[serve]'\n")
