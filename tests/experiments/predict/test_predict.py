"""`hierfl predict RUN`: new rows, by the clients that they are of, and by new ones."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from support.commands import Call
from support.federations import blobs
from support.methods import network_for
from support.run_folders import Finished
from torchvision.utils import save_image

import hierfl as package
from hierfl import Federation, UserError
from hierfl.data.folders.images import read_as
from hierfl.data.readers.pictures import picture_files
from hierfl.experiments.predict.answers import Question, answered
from hierfl.experiments.predict.new_rows import network_rows
from hierfl.inference.run.fit import fit
from hierfl.models import FedAvg, PFedVEM
from hierfl.nn.networks.build import architecture

#: pictures of the digits' scale
X = np.linspace(0, 1, 4 * 64, dtype=np.float32).reshape(4, 1, 8, 8)


class Config:
    """What answers ask of a configuration."""

    reading, group, spellings, image_size = None, "site", None, None


class Pictures:
    """What they ask of a federation of pictures."""

    about: ClassVar[dict[str, Any]] = {}
    event_shape = (1, 5, 4)


@pytest.fixture
def asked(hierfl: Call, finished: Finished, tmp_path: Path) -> Callable[..., tuple[int, Any, str]]:
    """Asks a small pFedVEM on the digits; a frame, or the error."""
    finished("pfedvem", tmp_path / "run")
    np.savez(tmp_path / "alone.npz", x=X)
    np.savez(tmp_path / "named.npz", x=X, client=np.array(["2", "0", "2", "1"]), y=np.arange(4))

    def ask(*options: object) -> tuple[int, Any, str]:
        code, out, err = hierfl("predict", "run", *options)
        return code, pd.read_csv(io.StringIO(out), dtype={"client": str}) if code == 0 else None, err

    return ask


def test_rows_of_an_npz_are_answered_by_their_clients(asked: Callable[..., Any], tmp_path: Path) -> None:
    code, predictions, err = asked("--data", "named.npz")
    assert code == 0, err
    run = package.load_run(tmp_path / "run")
    assert predictions["client"].tolist() == ["2", "0", "2", "1"]
    mine = run.predict(X[[0, 2]], "2").numpy()
    np.testing.assert_allclose(predictions.filter(regex=r"^p\(").to_numpy()[[0, 2]], mine, rtol=1e-5)
    assert predictions["label"].tolist() == [
        int(predictions.loc[k].filter(regex=r"^p\(").astype(float).argmax()) for k in range(4)
    ]
    code, predictions, _ = asked("--data", "alone.npz", "--client", "1")
    assert (predictions["client"] == "1").all()
    code, predictions, _ = asked("--data", "alone.npz", "--new")
    np.testing.assert_allclose(predictions["p(3)"], run.predict_new_client(X)[:, 3], rtol=1e-5)
    code, predictions, _ = asked("--data", "alone.npz", "--new", "--given", "named.npz")
    np.testing.assert_allclose(predictions["p(3)"], run.predict_new_client(X, given=(X, np.arange(4)))[:, 3], rtol=1e-5)


def test_a_folder_of_clients_arrays_is_answered_by_its_clients(
    asked: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An .npz for each client, with or without y, and LEAF's json: what a run may be fitted to."""
    for name, rows in (("npz/0", X[:1]), ("npz/2", X[1:]), ("mixed/0", X)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / f"{name}.npz", x=rows)
    code, predictions, err = asked("--data", "npz")
    assert code == 0, err
    assert predictions["client"].tolist() == ["0", "2", "2", "2"]
    run = package.load_run(tmp_path / "run")
    np.testing.assert_allclose(predictions["p(3)"].to_numpy()[1:], run.predict(X[1:], "2").numpy()[:, 3], rtol=1e-5)
    code, given, err = asked("--data", "npz", "--client", "1", "--draws", 0)
    assert (given["client"] == "1").all()
    assert "all 4 rows are predicted by the model of '1' (--client), also those that name '0', '2';" in caplog.text
    np.savez(tmp_path / "npz/1.npz", x=X, y=np.arange(4))
    assert asked("--data", "npz")[2] == "error: npz: 1.npz has y, and 0.npz has none\n"
    users = {name: {"x": X[:2].tolist(), "y": [3, 1]} for name in ("1", "0")}
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf/all.json").write_text(json.dumps({"users": ["1", "0"], "user_data": users}))
    code, predictions, err = asked("--data", "leaf")
    assert code == 0, err
    assert predictions["client"].tolist() == ["1", "1", "0", "0"]
    np.testing.assert_allclose(predictions["p(3)"][:2], run.predict(X[:2], "1").numpy()[:, 3], rtol=1e-5)
    shutil.copy(tmp_path / "leaf/all.json", tmp_path / "mixed")
    assert "mixed holds files of several kinds" in asked("--data", "mixed")[2]


def test_what_is_not_understood_is_one_line(asked: Callable[..., Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "strange.npz", x=X, client=np.array(["9", "0", "2", "1"]))
    np.savez(tmp_path / "both.npz", x=X, client=np.array(["9", "0", "8", "9"]))
    np.savez(tmp_path / "scaled.npz", x=16 * X)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "out.csv").touch()
    lines = {
        ("--data", "alone.npz"): "whose rows are these?",
        ("--data", "strange.npz"): "no client '9' was fitted (there are 0, 1, 2): --new predicts for clients that are",
        ("--data", "both.npz"): "no clients '8', '9' were fitted (there are 0, 1, 2): --new predicts for clients that "
        "are new, from a file of theirs alone",
        ("--data", "scaled.npz", "--client", "0"): "inputs reach from 0 to 16",
        ("--data", "named.npz", "--new"): "client '2' was fitted, and --new is of clients that were not",
        ("--data", "alone.npz", "--client", "0", "--new"): "say one of them",
        ("--data", "alone.npz", "--given", "named.npz"): "say --new, too",
        ("--data", "alone.npz", "--new", "--given", "alone.npz"): "has no responses",
        ("--data", "alone.npz", "--client", "0", "--interval", 0.5): "--interval is of numbers",
        ("--data", "t.csv"): "the run is of arrays",
        ("--data", "none.npz", "--client", "0"): "no file none.npz",
        ("--data", "alone.npz", "--sep", ";"): "--sep is for tables",
        ("--data", "alone.npz", "--client", "0", "--out", "out.csv"): "out.csv exists",
        ("--data", "alone.npz", "--client", "0", "--out", "p.npz"): "--out writes csv, and p.npz is called .npz",
        ("--data", "alone.npz", "--study", "s"): "--study is of a site",
    }
    for options, words in lines.items():
        code, _, err = asked(*options)
        assert code == 2, options
        assert words in err, err
        assert len(err.splitlines()) == 1


def test_pictures_of_a_folder_are_read_by_their_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = torch.as_tensor(rng.integers(0, 256, (3, 1, 5, 4)), dtype=torch.uint8)
    for index, name in enumerate(("b/2.png", "a/1.png", "b/1.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_image(pictures[index] / 255, tmp_path / name)
    files, names = picture_files(tmp_path)
    assert names == ["a", "b", "b"]
    for resize in (False, True):
        assert np.array_equal(read_as(files, (1, 5, 4), resize=resize), pictures[[1, 2, 0]].numpy())
    with pytest.raises(UserError, match="is 5x4 pixels high and wide, and the run's pictures are 6x4"):
        read_as(files, (1, 6, 4), resize=False)
    assert read_as(files, (3, 2, 2), resize=True).shape == (3, 3, 2, 2)
    (tmp_path / "a" / "._1.png").write_bytes(b"of a Mac")
    assert picture_files(tmp_path) == (files, names)
    save_image(torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0)), tmp_path / "colours.png")
    with pytest.raises(UserError, match=r"the run's pictures are grey, and .*colours.png is in colour"):
        read_as([tmp_path / "colours.png"], (1, 5, 4), resize=False)
    assert picture_files(files[0]) == ([files[0]], None)
    labelled = tmp_path / "as" / "training" / "b" / "yes" / "3.png"
    labelled.parent.mkdir(parents=True)
    shutil.copy(files[0], labelled)
    assert picture_files(tmp_path / "as" / "training") == ([labelled], ["b"])
    rows = network_rows(tmp_path / "as" / "training", Pictures, Config, None, None)  # type: ignore[arg-type]
    assert (rows.files, rows.owner.tolist(), rows.y.tolist()) == (("yes/3.png",), ["b"], ["yes"])
    rows = network_rows(labelled, Pictures, Config, None, None)  # type: ignore[arg-type]
    assert (rows.files, rows.owner, rows.x.shape) == (("3.png",), None, (1, 1, 5, 4))
    shutil.rmtree(tmp_path / "as")
    (tmp_path / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="is no JPEG or PNG picture, or a damaged one"):
        read_as(files, (1, 5, 4), resize=False)
    (tmp_path / "a" / "none").mkdir()
    with pytest.raises(UserError, match="has no pictures"):
        picture_files(tmp_path / "a" / "none")


def test_sets_are_of_a_run_with_conformal(tmp_path: Path) -> None:
    fed = blobs([30, 30], validation=0.3)
    run = fit(FedAvg(network_for(FedAvg, fed)), fed, rounds=1, progress=False, conformal=0.3)
    np.savez(tmp_path / "x.npz", x=fed.x[:5].numpy())
    predictions = answered(run, Config, Question(tmp_path / "x.npz", client=run.ids[1]))  # type: ignore[arg-type]
    inside = run.prediction_sets(fed.x[:5], run.ids[1]).numpy()
    assert predictions["set"].tolist() == ["|".join(map(str, np.flatnonzero(row))) for row in inside]


def test_a_new_client_learns_from_its_labelled_pictures(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 1, 5, 4), generator=rng).to(torch.uint8)
    fed = Federation.from_arrays(x, np.array(["cat", "dog"] * 10), np.arange(20) // 10, test=0.0)
    run = fit(PFedVEM(architecture("mlp:3", fed)), fed, rounds=1, progress=False)
    for k, label in enumerate(("cat", "dog", "dog")):
        for file in (tmp_path / "few" / "p" / label / f"{k}.png", tmp_path / "new" / "p" / f"{k}.png"):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_image(x[k] / 255, file)
    question = Question(tmp_path / "new", new=True, given=tmp_path / "few")
    predictions = answered(run, Config, question)  # type: ignore[arg-type]
    wanted = run.predict_new_client(x[:3], given=(x[:3], np.array(["cat", "dog", "dog"])))
    np.testing.assert_allclose(predictions["p(dog)"], wanted[:, 1], rtol=1e-5)
    question = Question(tmp_path / "new", new=True, given=tmp_path / "new")
    with pytest.raises(UserError, match=r"new has no responses: .* or pictures in CLIENT/LABEL/"):
        answered(run, Config, question)  # type: ignore[arg-type]


def test_numbers_have_intervals_and_columns_go_by_their_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"age": rng.normal(60, 9, 40), "dose": rng.normal(size=40), "site": ["01", "2"] * 20})
    df["cost"] = 100 + df.age + df.dose
    fed = Federation.from_frame(df, client="site", y="cost", x=["age", "dose"])
    run = fit(PFedVEM(architecture("linear", fed)), fed, rounds=1, progress=False)
    file = tmp_path / "new.csv"
    df[["dose", "site", "age"]].head(6).to_csv(file, index=False)

    predictions = answered(run, Config, Question(file, interval=0.5))  # type: ignore[arg-type]
    assert predictions["client"].tolist() == ["01", "2"] * 3
    pd.testing.assert_frame_equal(predictions, run.predict(df.head(6), interval=0.5))
    table = answered(run, Config, Question(file, client="2", draws=3))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(table, run.predict(df.head(6), "2", draws=3))
    df[["dose", "age"]].head(6).to_csv(file, index=False)
    table = answered(run, Config, Question(file, new=True))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(table, run.predict_new_client(df.head(6).drop(columns="site")))
    df[["dose", "site"]].to_csv(file, index=False)
    with pytest.raises(UserError, match="lacks column 'age'"):
        answered(run, Config, Question(file))  # type: ignore[arg-type]
