"""Arrays as people have them: words, names and numbers are checked as those of a table are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl import Federation, UserError, mixed_model, read_table
from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.response_sums import response_sums, response_units
from hierfl.inference import fit
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

RNG = np.random.default_rng(0)
X, WHO = RNG.normal(size=(60, 3)), np.repeat(list("abc"), 20)
LABELS = (X[:, 0] > 0).astype(int)
WORDS = np.where(LABELS, "yes", "no")
PICTURES = RNG.uniform(size=(60, 1, 3, 3))


def made(**change: Any) -> Federation:
    return Federation.from_arrays(**{"x": X, "y": LABELS, "client": WHO, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_test": X, "y_test": LABELS, "client_test": np.where(WHO == "a", "A", WHO)}, "'A' and 'a', which differ"),
        ({"y": [f"{value:.2f}" for value in X[:, 1]]}, "y holds numbers as text, .*astype.float. for responses"),
        ({"y": [f"{value:.2f}".replace(".", ",") for value in X[:, 1]]}, "y holds numbers as text"),
        ({"y": [f"id{k}" for k in range(60)]}, "y holds 60 different words in 60 rows"),
        ({"y": np.where(LABELS, "yes", "nan")}, "y holds 'nan', as a missing value reads"),
        ({"y": np.where(LABELS, "yes", "")}, "y holds '', as a missing value reads"),
        ({"y": np.array(["no", "yes", "Yes "])[RNG.integers(0, 3, 60)]}, "holds 'Yes ' and 'yes'.*spellings='join'"),
        ({"client": np.where(WHO == "a", "B ", WHO)}, "column 'client' holds 'B ' and 'b', which differ"),
        ({"client": np.where(WHO == "a", "nan", WHO)}, "client holds 'nan', as a missing value reads"),
        ({"client": np.stack([WHO, WHO], 1)}, "client has shape .60, 2.: it is one column"),
        ({"client": None}, "client is None: it has a name for each row"),
        ({"client": "a"}, "client is 'a': it has a name for each row"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"seed": None}, "seed must be a whole number of at least 0, not None"),
        ({"test": "0.1"}, "test must be a fraction in .0, 1., not '0.1'"),
        ({"validation": "0.1"}, "validation must be a fraction in .0, 1., not '0.1'"),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        made(**change)
    assert "\n" not in str(error.value)


def test_the_remedies_of_words_are_taken() -> None:
    spelled = np.where(np.arange(60) % 7 == 0, "B ", np.where(WHO == "b", "b", WHO))
    assert list(made(client=spelled, spellings="join").ids) == ["a", "b", "c"]
    assert list(made(client=spelled, spellings="keep").ids) == ["B ", "a", "b", "c"]
    joined = made(y=np.where(np.arange(60) % 9 == 0, WORDS, np.char.upper(WORDS)), spellings="join")
    assert joined.about["labels"] == ["NO", "YES"]
    assert joined.classes == 2
    assert made(y=[f"{value:.1f}" for value in X[:, 1]], task="classification").task == "classification"


def test_codes_for_missing_values_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    x = X.copy()
    x[3, 1] = -999
    made(x=x)
    assert caplog.messages.pop().startswith("arrays: column 1 of x holds -999 in 1 row, and all others lie from -1")
    df = pd.DataFrame({"site": WHO, "x": x[:, 1], "y": X[:, 0]})
    caplog.clear()
    Federation.from_frame(df, client="site", y="y", x=["x"])
    mixed_model(df, "y ~ x + (1 | site)", draws=0)
    assert [line.partition(" in 1 row")[0] for line in caplog.messages] == ["column 'x' holds -999"] * 2
    caplog.clear()
    mixed_model(read_table(df, types={"x": "number"}), "y ~ x + (1 | site)", draws=0)
    mixed_model(read_table(df, na=["-999"]), "y ~ x + (1 | site)", draws=0, na="drop")
    assert not caplog.messages


def test_whole_numbers_far_from_unit_scale_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    whole = np.round(1000 * X).astype(int)
    assert made(x=whole).mean is None
    assert "arrays: column 0 of x holds whole numbers from -" in caplog.text
    assert "far from unit scale, and is used as it is: inputs='numbers'" in caplog.text
    caplog.clear()
    count, ages = RNG.integers(0, 4, 60), 60 + 12 * X[:, 0]
    assert made(x=np.stack([ages, count], 1), weights=np.arange(60) % 3 + 1.0).mean is not None
    assert not caplog.messages  # the count is near unit scale
    assert made(x=whole, inputs="numbers").mean is not None
    assert made(x=pd.DataFrame(whole, columns=list("pqr"))).mean is not None
    assert not caplog.messages


def test_bytes_for_numbers_from_0_to_1_are_refused() -> None:
    pixels = RNG.integers(0, 256, (60, 10)).astype(np.uint8)
    fed = made(x=pixels / 255)
    run = fit(PFedVEM(architecture("linear", fed)), fed, rounds=0, progress=False)
    with pytest.raises(UserError, match="divide them by 255"):
        run.predict(pixels, "a")


def test_names_in_an_npz_that_are_spelled_alike_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    who = np.where(np.arange(60) % 2, WHO, np.char.add(WHO, " "))
    np.savez(tmp_path / "n.npz", x_train=X, y_train=LABELS, x_test=X, y_test=LABELS, client_train=who, client_test=who)
    assert Federation.from_npz(tmp_path / "n.npz").clients == 6
    assert "n.npz: clients 'a' and 'a ';" in caplog.text


def test_a_study_of_arrays_says_that_inputs_are_not_standardised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, x in (("near", X), ("far", 1000 * X + 0.5), ("whole", np.round(1000 * X)), ("pictures", 99 * PICTURES)):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=LABELS, x_test=x, y_test=LABELS)
        ArrayData(x.shape[1:], False, 2, "s", "linear").site(tmp_path / f"{name}.npz", "a")
    assert [line.partition(": ")[0] for line in caplog.messages] == ["far.npz", "whole.npz", "pictures.npz"]
    assert all("far from unit scale, and a study of arrays uses it as it is" in line for line in caplog.messages)


@pytest.mark.parametrize("x", [1000 * PICTURES, np.round(1000 * X)])
def test_an_npz_that_is_far_from_unit_scale_has_a_line(
    x: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "n.npz", x_train=x, y_train=LABELS, x_test=x, y_test=LABELS, client_train=WHO, client_test=WHO)
    for how in (True, False):
        Federation.from_npz(tmp_path / "n.npz", standardise=how)
    assert not caplog.messages
    Federation.from_npz(tmp_path / "n.npz")
    (line,) = caplog.messages
    assert line.endswith("--standardise no (standardise=False) says that this is meant")


def test_numbers_in_the_shape_of_colour_pictures_have_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = RNG.normal(size=(60, 5, 4, 3))
    for name, form in (("last", x), ("first", np.moveaxis(x, 3, 1)), ("bytes", (9 * x).astype(np.uint8))):
        np.savez(tmp_path / f"{name}.npz", x_train=form, y_train=LABELS, x_test=form, y_test=LABELS)
        Federation.from_npz(tmp_path / f"{name}.npz", clients=2, split="iid")
    (line,) = caplog.messages
    assert line.startswith("last: inputs of shape (5, 4, 3) are 5 channels of 4 x 3 numbers")


def test_sums_that_do_not_say_a_standard_deviation_are_refused() -> None:
    y = X[:, 0]
    assert response_units(response_sums(y + 1000, 0.0), 0.0).sd == pytest.approx(y.std(), rel=1e-6)
    with pytest.raises(UserError, match="the responses' mean is 1e.09.*subtract one number"):
        response_units(response_sums(y + 1e9, 0.0), 0.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PFedVEM(), "PFedVEM: missing a required argument: 'network'; it is called as PFedVEM.network"),  # type: ignore[call-arg]
        (lambda: architecture(made(), "linear"), "architecture takes a name and a federation"),  # type: ignore[arg-type]
    ],
)
def test_calls_are_shown_as_they_are_made(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()
