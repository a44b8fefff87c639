"""Folders of pictures, of an .npz for each client, of LEAF's json; clients one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from hierfl import Federation, UserError
from hierfl.data.folders.load import new_client_rows
from hierfl.experiments.build import build
from hierfl.experiments.configure import configure


def pictures(root: Path, clients: str = "ab", number: int = 5, shape: tuple[int, ...] = (6, 8, 3)) -> Path:
    """Cats are dark, dogs bright; pixel (0, 0) of picture k is k."""
    for client in clients:
        for label, level in (("cat", 40), ("dog", 200)):
            folder = root / client / label
            folder.mkdir(parents=True)
            for k in range(number):
                picture = np.full(shape, level, np.uint8)
                picture[0, 0] = k
                Image.fromarray(picture).save(folder / f"{k}.png")
    return root


def test_pictures_by_client_and_label(tmp_path: Path) -> None:
    fed = Federation.from_folder(pictures(tmp_path / "photos"), validation=0.0)
    assert (fed.task, fed.classes, list(fed.ids)) == ("classification", 2, ["a", "b"])
    assert fed.about["labels"] == ["cat", "dog"]
    assert fed.x.dtype == torch.uint8
    assert fed.event_shape == (1, 6, 8)  # grey in all three channels
    assert (fed.sizes(), fed.sizes("test")) == ([8, 8], [2, 2])
    assert ((fed.x[:, 0, 3, 3] > 100) == (fed.y == 1)).all()
    again = Federation.from_folder(tmp_path / "photos", validation=0.0)
    assert again.digest() == fed.digest()
    assert Federation.from_folder(tmp_path / "photos", validation=0.0, seed=1).digest() != fed.digest()


def test_drawings_whose_shape_is_in_their_transparency_are_refused(tmp_path: Path) -> None:
    """As colours alone they are all black."""
    root = pictures(tmp_path / "photos")
    Image.fromarray(np.full((6, 8, 4), (0, 0, 0, 9), np.uint8)).save(root / "a" / "cat" / "0.png")
    with pytest.raises(UserError, match="0.png has transparent pixels"):
        Federation.from_folder(root)


def test_pictures_of_several_sizes_are_resized_on_request(tmp_path: Path) -> None:
    pictures(tmp_path / "p", "a")
    pictures(tmp_path / "p", "b", shape=(12, 12, 3))
    with pytest.raises(UserError, match="several sizes, 6x8 and 12x12 .*: say --image-size 6"):
        Federation.from_folder(tmp_path / "p")
    fed = Federation.from_folder(tmp_path / "p", size=(6, 4))
    assert fed.event_shape[1:] == (6, 4)
    config = configure("fedavg", str(tmp_path / "p"), {"image_size": 6, "network": "linear"}, {})
    ready, _ = build(config)
    assert ready.federation.event_shape[1:] == (6, 6)


def test_folders_without_pictures_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = pictures(tmp_path / "photos")
    for name in ("c", "d/cat", "a/fox", ".cache"):
        (root / name).mkdir(parents=True)
    for name in ("9.png", "a/8.png"):
        (root / name).write_bytes((root / "a/cat/0.png").read_bytes())
    fed = Federation.from_folder(root, validation=0.0)
    assert (list(fed.ids), fed.about["labels"]) == (["a", "b"], ["cat", "dog"])
    assert "photos: without pictures, and left out: c, d, a/fox" in caplog.text
    assert "photos: pictures outside of client/label, and left out: 9.png, a/8.png" in caplog.text


def test_a_folder_may_have_its_own_test_part(tmp_path: Path) -> None:
    pictures(tmp_path / "p" / "train", "abc")
    pictures(tmp_path / "p" / "test", "ac", number=2)
    fed = Federation.from_folder(tmp_path / "p", validation=0.0)
    assert (fed.sizes(), fed.sizes("test")) == ([10, 10, 10], [4, 0, 4])


def test_folders_called_by_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    for label in ("2", "10"):
        folder = tmp_path / "p" / "a" / label
        folder.mkdir(parents=True)
        for k in range(3):
            Image.fromarray(np.full((4, 4), int(label), np.uint8)).save(folder / f"{k}.png")
    fed = Federation.from_folder(tmp_path / "p", test=0.0)
    assert fed.about["labels"] == ["2", "10"]


def test_an_npz_for_each_client(tmp_path: Path) -> None:
    for name, n in (("ward-1", 10), ("ward-2", 5)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((n, 3), float(n)), y=np.arange(n) + 0.5)
    fed = Federation.from_folder(tmp_path)
    assert (fed.task, list(fed.ids), fed.sizes(), fed.sizes("test")) == (
        "regression",
        ["ward-1", "ward-2"],
        [8, 4],
        [2, 1],
    )


def test_leafs_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part, n in (("train", 6), ("test", 2)):
        (tmp_path / part).mkdir()
        data = {u: {"x": np.full((n, 784), k / 2).tolist(), "y": [k, 1 - k] * (n // 2)} for k, u in enumerate("uv")}
        text = json.dumps({"users": ["u", "v"], "num_samples": [n, n], "user_data": data})
        (tmp_path / part / "all.json").write_text(text)
    fed = Federation.from_folder(tmp_path, validation=0.0)
    assert (fed.classes, fed.event_shape, fed.sizes(), fed.sizes("test")) == (2, (1, 28, 28), [6, 6], [2, 2])
    assert "784 numbers are read as pictures of 28 x 28" in caplog.text


def test_clients_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    series = {name: rng.normal(size=(n, 2, 16)) for name, n in (("b", 10), ("a", 5), ("c", 5))}
    fed = Federation.from_clients(((name, x, x[:, 0, 0]) for name, x in series.items()), test=0.2)
    assert (list(fed.ids), fed.event_shape, fed.sizes()) == (["a", "b", "c"], (2, 16), [4, 8, 4])
    own = fed.examples(fed.train[1])
    torch.testing.assert_close(own[1], own[0][:, 0, 0])
    some = Federation.from_clients(
        [(name, x, x[:, 0, 0]) for name, x in series.items()], test_clients=[("a", series["a"], series["a"][:, 0, 0])]
    )
    assert (some.sizes(), some.sizes("test")) == ([5, 10, 5], [5, 0, 0])
    tokens = Federation.from_clients([(1, np.full((4, 7), 1000), ["u", "v"] * 2)], inputs="ids", test=0.0)
    assert tokens.examples(tokens.train[0])[0].dtype == torch.int64
    frames = [(name, pd.DataFrame({"k": [1.0, 2.5, 3.0]}), [0.5, 1.5, 2.5]) for name in "ab"]
    assert Federation.from_clients(frames, test=0.0).about["columns"] == ["k"]


X = np.ones((4, 2))


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "there is no client"),
        ([("a", X)], "a client is .its name, inputs, targets.; entry 0 is not"),
        ([("a", X, [0, 1, 0, 1]), ("a", X, [0, 1, 0, 1])], "client a comes twice"),
        ([("a", X, [0, 1])], "client a has 4 inputs and 2 targets"),
        (
            [("a", X, [0, 1, 0, 1]), ("b", np.ones((4, 3)), [0, 1, 0, 1])],
            r"of client b have shape \(3,\), others",
        ),
        ([("a", X, [0, 1, 0, 1]), ("b", X, list("uvuv"))], "some clients' targets are words, and others' numbers"),
        ([(1.5, X, [0, 1, 0, 1])], "the name of client 0 is 1.5"),
    ],
)
def test_clients_that_do_not_fit_are_one_line(clients: list, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Federation.from_clients(clients)


def test_folders_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder of data: client/label/"):
        Federation.from_folder(tmp_path)
    with pytest.raises(UserError, match="--image-size is for a folder of pictures, and digits is none"):
        configure("fedavg", "digits", {"image_size": 8}, {})
    root = pictures(tmp_path / "p")
    (root / "a" / "cat" / "notes.txt").write_text("no picture")
    with pytest.raises(UserError, match="notes.txt is no picture"):
        Federation.from_folder(root)
    (root / "a" / "cat" / "notes.txt").unlink()
    (root / "a" / "cat" / "x.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="x.png is no JPEG or PNG picture, or a damaged one") as error:
        Federation.from_folder(root)
    assert "_io." not in str(error.value)  # Pillow's own words name an open stream
    (root / "b" / "dog" / "y.png").touch()
    with pytest.raises(UserError, match=r"2 of 22 pictures cannot be read: .*x.png is no JPEG .*; likewise .*y.png$"):
        Federation.from_folder(root)
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all.json").write_text('{"user_data": {"u": {"x": ["some text"], "y": [0]}}}')
    with pytest.raises(UserError, match="holds text: make token ids of it"):
        Federation.from_folder(tmp_path / "leaf")


def leaf(**change: object) -> str:
    rows = {"x": [[0.0, 1.0], [1.0, 0.0]], "y": [0, 1]}
    return json.dumps({"users": ["a", "b"], "user_data": {"a": rows, "b": rows}, **change})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (leaf(users=["a"]), "user_data has 'b', and users has not"),
        (leaf(users=["a", "b", "c"]), "users has 'c', and user_data has not"),
        (leaf().replace('"b":', '"a":'), "'a' comes twice in one object"),
        (leaf(num_samples=[2, 3]), "num_samples says that user 'b' has 3 rows, and there are 2"),
        (leaf(num_samples=[2]), "num_samples is not a list with a number for each of its users"),
        (leaf().replace("[1.0, 0.0]", "[1.0]", 1), "the rows of user 'a' are not all numbers, or of different lengths"),
        (leaf().replace("1.0", "[1.0]", 1), "the rows of user 'a' are not all numbers, or of different lengths"),
    ],
)
def test_json_that_contradicts_itself_loses_no_user_in_silence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=words):
        Federation.from_folder(tmp_path)


def test_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\ufeff" + leaf(), encoding="utf-8")
    assert list(Federation.from_folder(tmp_path, test=0.0).ids) == ["a", "b"]


def test_pixels_of_two_scales_and_clients_without_rows_are_said(caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.full((6, 4, 4), 200, np.uint8), np.arange(6) % 2
    with pytest.raises(UserError, match="inputs of client a are uint8, .* and those of client b fractions"):
        Federation.from_clients([("a", x, y), ("b", x / 255, y)])
    with pytest.raises(UserError, match="inputs of client b are uint8, .* and those of client a fractions"):
        Federation.from_clients([("a", x / 255, y), ("b", x, y)])
    assert list(Federation.from_clients([("a", x, y), ("b", x[:0], y[:0])]).ids) == ["a"]
    assert "clients: without rows, and left out: b" in caplog.text


@pytest.mark.parametrize("y", [(k for k in range(4)), 3, None])
def test_targets_are_one_for_each_row(y: object) -> None:
    with pytest.raises(UserError, match="it has a value for each row"):
        Federation.from_arrays(np.ones((4, 1)), y, ["a"] * 4)
    with pytest.raises(UserError, match="it has a value for each row"):
        Federation.from_arrays(np.ones((4, 1)), [0, 1, 0, 1], ["a"] * 4, weights=2.0)


def test_new_rows_of_leaf_need_no_targets(tmp_path: Path) -> None:
    users = {"a": {"x": [[1.0, 2.0]]}, "b": {"x": [[3.0, 4.0], [5.0, 6.0]]}}
    file = tmp_path / "new.json"
    file.write_text(json.dumps({"users": ["a", "b"], "num_samples": [1, 2], "user_data": users}))
    x, y, client = new_client_rows(tmp_path)
    assert (x.tolist(), y, client.tolist()) == ([[1, 2], [3, 4], [5, 6]], None, ["a", "b", "b"])
    with pytest.raises(UserError, match="user 'a' has no y, the targets of its rows"):
        Federation.from_folder(tmp_path)
    file.write_text(json.dumps({"user_data": {**users, "b": {**users["b"], "y": [0, 1]}}}))
    with pytest.raises(UserError, match="user 'b' has y, and user 'a' has none"):
        new_client_rows(tmp_path)
    file.write_text(json.dumps({"user_data": {"a": {"y": [0]}}}))
    with pytest.raises(UserError, match="user 'a' has no x"):
        new_client_rows(tmp_path)
