"""Digits of several domains: published files in their formats, what is made where there are none, and their splits."""

from __future__ import annotations

import bz2
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from support.commands import Call
from support.image_sets import mnist_like

from hierfl import Federation, UserError
from hierfl.data.arrays import make_pool
from hierfl.data.datasets import domains, mnist_m, synthetic_digits
from hierfl.data.datasets.registry import load

RNG = np.random.default_rng(0)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_digits, "SYNTHETIC_TRAIN", 40)
    monkeypatch.setattr(synthetic_digits, "SYNTHETIC_TEST", 20)


def test_mnist_m_is_made_as_it_was(tmp_path: Path) -> None:
    """The difference between patch and digit; black becomes the photograph, white its negative."""
    arrays = mnist_like(tmp_path, "MNIST", ("train", "t10k"))
    pool = load("mnist-m", tmp_path)
    assert pool.origin == "made from mnist and patches of scikit-learn's two sample photographs"
    assert pool.x_train.shape == (30, 3, 28, 28)
    assert (pool.y_train == arrays["y_train"]).all()
    photograph = RNG.integers(0, 256, (28, 40, 3), dtype=np.uint8)
    digits = np.stack([np.zeros((1, 28, 28), np.uint8), np.full((1, 28, 28), 255, np.uint8)])
    black, white = mnist_m.blended(digits, [photograph], np.random.default_rng(1))
    windows = [np.moveaxis(photograph[:, left : left + 28], -1, 0) for left in range(13)]
    assert sum((black == w).all() for w in windows) == 1
    assert sum((white == 255 - w).all() for w in windows) == 1
    assert (load("mnist-m", tmp_path).x_train == pool.x_train).all()
    folder = tmp_path / "BSDS500" / "images"
    folder.mkdir(parents=True)
    Image.fromarray(photograph).resize((60, 60)).save(folder / "one.jpg")
    other = load("mnist-m", tmp_path)
    assert other.origin == "made from mnist and patches of 1 photographs of BSDS500"
    assert other.digest() != pool.digest()
    Image.new("RGB", (20, 60)).save(folder / "two.jpg")
    with pytest.raises(UserError, match=r"two\.jpg is smaller than"):
        load("mnist-m", tmp_path)


def test_the_published_mnist_m(tmp_path: Path) -> None:
    wanted = {}
    for part, n in (("train", 12), ("test", 10)):
        folder = tmp_path / "mnist_m" / f"mnist_m_{part}"
        folder.mkdir(parents=True)
        lines, wanted[part] = [], RNG.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        for k, picture in enumerate(wanted[part]):
            Image.fromarray(picture).save(folder / f"{k:08d}.png")
            lines.append(f"{k:08d}.png {k % 10}")
        (folder.parent / f"mnist_m_{part}_labels.txt").write_text("\n".join(lines) + "\n")
    pool = load("mnist-m", tmp_path)
    assert not pool.origin
    assert (pool.x_train == np.moveaxis(wanted["train"], -1, 1)).all()
    assert pool.y_test.tolist() == list(range(10))
    names = tmp_path / "mnist_m" / "mnist_m_test_labels.txt"
    listed = names.read_text()
    for line in ("../mnist_m_train/00000003.png 3", "00000003.png ³", "00000003.png 11", "00000003.png", "\0 3"):
        names.write_text(listed.replace("00000003.png 3", line))
        with pytest.raises(UserError, match="incomplete") as error:
            load("mnist-m", tmp_path)
        assert str(error.value).isprintable()
    names.write_text(listed)
    Image.new("RGB", (8, 8)).save(tmp_path / "mnist_m" / "mnist_m_test" / "00000004.png")
    with pytest.raises(UserError, match="00000004.png has another size"):
        load("mnist-m", tmp_path)
    (tmp_path / "mnist_m" / "mnist_m_test" / "00000003.png").unlink()
    with pytest.raises(UserError, match="incomplete.*00000003.png 3"):
        load("mnist-m", tmp_path)
    (tmp_path / "mnist_m" / "mnist_m_test_labels.txt").unlink()
    with pytest.raises(UserError, match="incomplete: no file"):
        load("mnist-m", tmp_path)


def test_rendered_digits_are_a_function_of_the_seed() -> None:
    x, y = synthetic_digits.rendered(60, 3)
    again, _ = synthetic_digits.rendered(60, 3)
    other, _ = synthetic_digits.rendered(60, 4)
    assert (x == again).all()
    assert (x != other).any()
    assert np.bincount(y).tolist() == [6] * 10
    assert x.shape == (60, 3, 32, 32)
    middle = x[:, :, 8:24, 8:24].astype(float)
    assert (middle.std((2, 3)).max(1) > 12).all()  # a digit, not noise of 8


def test_the_published_synthetic_digits(tmp_path: Path) -> None:
    folder = tmp_path / "SynthDigits"
    folder.mkdir()
    x = RNG.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    y = (np.arange(20) % 10)[:, None].astype(np.uint8)
    savemat(folder / "synth_train_32x32.mat", {"X": x, "y": y})
    with pytest.raises(UserError, match="no file .*synth_test_32x32.mat"):
        load("synthetic-digits", tmp_path)
    savemat(folder / "synth_test_32x32.mat", {"X": x, "y": y})
    pool = load("synthetic-digits", tmp_path)
    assert (pool.x_test[7, 1] == x[:, :, 1, 7]).all()
    assert not pool.origin


def test_svhn_and_usps(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    (tmp_path / "USPS").mkdir()
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        x = RNG.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
        savemat(tmp_path / "SVHN" / f"{part}_32x32.mat", {"X": x, "y": (np.arange(20) % 10 + 1)[:, None]})
        lines = [f"{k % 10 + 1} " + " ".join(f"{i + 1}:{v:.3f}" for i, v in enumerate(row)) for k, row in
                 enumerate(RNG.uniform(-1, 1, (20, 256)))]  # fmt: skip
        (tmp_path / "USPS" / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    house = load("svhn", tmp_path)
    assert house.x_test.shape == (20, 3, 32, 32)
    assert (house.x_test[4, 2] == x[:, :, 2, 4]).all()
    assert house.y_test[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    post = load("usps", tmp_path)
    assert post.x_train.shape == (20, 1, 16, 16)
    assert post.y_train[:3].tolist() == [0, 1, 2]


def test_resizing() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    big = domains.resized(grey)
    assert big.shape == (1, 3, 28, 28)
    assert (big[:, 0] == big[:, 2]).all()
    assert abs(float(big.mean()) - 127.5) < 1
    same = RNG.integers(0, 256, (2, 1, 28, 28), dtype=np.uint8)
    assert (domains.resized(same)[:, 1] == same[:, 0]).all()
    stripes = np.tile(np.array([0, 255], np.uint8), (1, 3, 56, 28))
    # Without antialiasing stripes stay black and white.
    assert np.ptp(domains.resized(stripes)[..., 3:-3].astype(int)) < 100


def test_a_federation_of_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierfl: Call) -> None:
    small(monkeypatch)
    mnist_like(tmp_path, "MNIST", ("train", "t10k"))
    pool = load("digit-three", tmp_path)
    assert pool.origin == (
        "mnist-m made from mnist and patches of scikit-learn's two sample photographs; "
        "synthetic-digits rendered from matplotlib's fonts"
    )
    fed = Federation.from_pool(pool, 3, "domains:25", validation=0.0)
    assert list(fed.ids) == ["mnist", "mnist-m", "synthetic-digits"]
    assert fed.sizes() == [25, 25, 25]
    assert fed.sizes("test") == [20, 20, 20]
    for j, name in enumerate(fed.ids):
        assert (pool.client_train[fed.train[j]] == name).all()
    natural = Federation.from_pool(pool, 0, "natural", validation=0.0)
    assert natural.sizes() == [30, 30, 40]
    code, _, err = hierfl(
        "run", "fedbn", "--data", "digit-three", "--data-root", tmp_path, "--network", "bncnn:2,2:4", "--rounds", 1,
        "--split", "domains:12", "--out", "run",
    )  # fmt: skip
    assert code == 0, err
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["run"]["data_origin"] == pool.origin
    assert "mnist-m" in (tmp_path / "run" / "clients.csv").read_text()


def domain_pool() -> object:
    rng, n = np.random.default_rng(1), 600
    who = np.repeat(["a", "b", "c"], n // 3)
    y = np.arange(n) % 10
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return make_pool("domains", x, y, x[::7], y[::7], client_train=who, client_test=who[::7])


def test_several_clients_share_a_domain() -> None:
    pool = domain_pool()
    fed = Federation.from_pool(pool, 6, "domains:80", validation=0.0)
    assert list(fed.ids) == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]
    taken = np.concatenate([index.numpy() for index in fed.train])
    assert len(np.unique(taken)) == 480
    for name, train, test in zip(fed.ids, fed.train, fed.test, strict=True):
        assert set(pool.client_train[train]) == {name[0]}
        assert set(pool.client_test[test - len(pool.y_train)]) == {name[0]}
        assert len(test) == (pool.client_test == name[0]).sum()
    skewed = Federation.from_pool(pool, 8, "domain-skew:5", validation=0.0)
    taken = np.concatenate([index.numpy() for index in skewed.train])
    assert len(np.unique(taken)) == len(taken)
    assert len(set(skewed.ids)) == 8
    for name, train, test in zip(skewed.ids, skewed.train, skewed.test, strict=True):
        assert name.partition("-")[0] == pool.client_train[train][0]
        assert len(np.unique(pool.client_train[train])) == 1
        assert len(np.unique(pool.y_train[train])) == 5
        assert set(pool.y_train[train]) >= set(skewed.y[test].tolist())
        assert set(pool.client_test[test - len(pool.y_train)]) == set(pool.client_train[train])


@pytest.mark.parametrize(
    ("clients", "split", "words"),
    [
        (4, "domains:10", "a multiple of as many clients, not 4"),
        (3, "domains:201", "domain a has 200 training examples, fewer than 1 times 201"),
        (3, "domains", "needs a whole number"),
        (5, "domain-skew:11", "11 labels per client are more than the 10"),
    ],
)
def test_splits_that_cannot_be(clients: int, split: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Federation.from_pool(domain_pool(), clients, split)
    x, y = np.zeros((40, 2), np.float32), np.arange(40) % 4
    with pytest.raises(UserError, match=r"has no domains|needs a whole number"):
        Federation.from_pool(make_pool("plain", x, y, x, y), 4, split)
