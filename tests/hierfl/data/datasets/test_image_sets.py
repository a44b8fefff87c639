"""Image sets in their published formats: what is read is what was written."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.commands import Call
from support.image_sets import RNG, cifar_like, mnist_like

from hierfl import Federation, UserError
from hierfl.data.arrays import make_pool
from hierfl.data.datasets.cifar import CIFAR100
from hierfl.data.datasets.domains import DIGIT_FIVE, DIGIT_THREE
from hierfl.data.datasets.registry import DATASETS, load
from hierfl.data.datasets.sun397 import SUN_HIERARCHY, SUN_SUPERCLASSES
from hierfl.nn.networks.build import architecture

DOMAINS = {"digit-five": DIGIT_FIVE, "digit-three": DIGIT_THREE}


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files(name: str, folder: str, tmp_path: Path) -> None:
    arrays = mnist_like(tmp_path, folder, ("train", "t10k"))
    pool = load(name, tmp_path)
    assert pool.name == name
    assert pool.classes == 10
    assert (pool.x_train == arrays["x_train"][:, None]).all()
    assert (pool.x_test == arrays["x_test"][:, None]).all()
    assert (pool.y_test == arrays["y_test"]).all()
    assert pool.mean.shape == (1, 1, 1)
    fed = Federation.from_pool(pool, 2, "equal", validation=0.0)
    mean, std = DATASETS[name].constants
    expected = (pool.x_train[fed.train[0][0]] / 255.0 - mean[0]) / std[0]
    assert np.allclose(fed.examples(fed.train[0][:1])[0][0].numpy(), expected, atol=1e-5)


def test_emnist_is_stored_with_rows_and_columns_exchanged(tmp_path: Path) -> None:
    arrays = mnist_like(tmp_path, "EMNIST", ("emnist-balanced-train", "emnist-balanced-test"))
    pool = load("emnist", tmp_path)
    assert (pool.x_train[:, 0] == arrays["x_train"].swapaxes(1, 2)).all()


def test_cifar10_batches(tmp_path: Path) -> None:
    images = cifar_like("CIFAR10", tmp_path)
    pool = load("cifar10", tmp_path)
    assert pool.x_train.shape == (100, 3, 32, 32)
    assert (pool.x_train.reshape(100, -1) == images[:100]).all()
    assert (pool.x_test.reshape(20, -1) == images[100:]).all()
    assert pool.classes == 10
    assert pool.mean.shape == (3, 1, 1)


def test_cifar100_gives_superclasses_and_keeps_subclasses(tmp_path: Path) -> None:
    cifar_like("CIFAR100", tmp_path)
    pool = load("cifar100", tmp_path)
    assert pool.classes == 20
    every = sorted(name for names in CIFAR100.values() for name in names)
    for coarse, names in enumerate(CIFAR100.values()):
        assert set(pool.fine_train[pool.y_train == coarse]) == {every.index(name) for name in names}
    fed = Federation.from_pool(pool, 5, "concept-drift", validation=0.0)
    for j in range(5):
        assert len(set(pool.fine_train[fed.train[j]])) == 20


def test_cifar100_superclasses_are_twenty_of_five() -> None:
    assert list(CIFAR100) == sorted(CIFAR100)
    assert all(len(names) == 5 and list(names) == sorted(names) for names in CIFAR100.values())
    assert len({name for names in CIFAR100.values() for name in names}) == 100


def sun_like(root: Path, images: int = 10) -> list[str]:
    """Three superclasses of three subclasses, one more that belongs to two, pictures of several shapes."""
    folder = root / "SUN397"
    spreadsheet = root / SUN_HIERARCHY
    names = [f"/{letter}/{letter}{k}" for letter in "abc" for k in range(3)] + ["/d/both/indoor"]
    table = {"category": names}
    for k, superclass in enumerate(SUN_SUPERCLASSES):
        table[superclass] = [int(name[1] == "abc"[k]) for name in names[:-1]] + [int(k != 2)]
    folder.mkdir(parents=True)
    spreadsheet.parent.mkdir()
    with pd.ExcelWriter(spreadsheet) as writer:
        pd.DataFrame(table).to_excel(writer, sheet_name="SUN397", startrow=1, index=False)
    (folder / "ClassName.txt").write_text("\n".join(names) + "\n")
    for number, name in enumerate(names):
        class_folder = folder / name.strip("/")
        class_folder.mkdir(parents=True)
        for k in range(images):
            colour = (20 * number, 10 * k, 100)
            Image.new("RGB" if k else "L", (80 + k, 100), colour if k else 9).save(class_folder / f"sun_{k:03d}.jpg")
    return names


def test_sun397_takes_subclasses_in_the_hierarchys_order(tmp_path: Path) -> None:
    sun_like(tmp_path)
    pool = load("sun397", tmp_path)
    assert pool.x_train.shape == (72, 3, 64, 64)  # nine subclasses of ten pictures, four fifths
    assert pool.x_test.shape == (18, 3, 64, 64)
    assert pool.classes == 3
    assert (pool.y_train == pool.fine_train // 3).all()
    assert (np.bincount(pool.fine_train) == 8).all()
    assert (np.bincount(pool.fine_test) == 2).all()
    colours = pool.x_train[:, 0].mean((1, 2))
    coloured = colours > 10 * pool.fine_train  # the grey ones aside
    assert np.abs(colours - 20 * pool.fine_train)[coloured & (pool.fine_train > 0)].max() < 8
    again = load("sun397", tmp_path)
    assert (again.x_train == pool.x_train).all()


def test_sun397_says_what_is_wrong_with_its_hierarchy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="also needs .*three_levels.xlsx, which torchvision does not download"):
        load("sun397", tmp_path)
    sun_like(tmp_path)
    path = tmp_path / SUN_HIERARCHY
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame({"category": ["/a/a0"], "indoor": [1]}).to_excel(writer, sheet_name="SUN397", startrow=1)
    with pytest.raises(UserError, match="lacks the column 'outdoor, natural'"):
        load("sun397", tmp_path)
    sun_like(tmp_path / "few", images=3)
    with pytest.raises(UserError, match="holds 3 images, too few"):
        load("sun397", tmp_path / "few")


def test_a_set_is_read_without_torchvision_and_without_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_like(tmp_path, "MNIST", ("train", "t10k"))
    cifar_like("CIFAR10", tmp_path)

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    assert load("mnist", tmp_path).x_train.shape == (30, 1, 28, 28)
    assert load("cifar10", tmp_path).x_train.shape == (100, 3, 32, 32)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_an_npz_comes_first_and_is_standardised_alike(name: str, tmp_path: Path) -> None:
    channels = len(DATASETS[name].constants[0])
    x = RNG.integers(0, 256, (40, 8, 8, channels), dtype=np.uint8)
    y = np.arange(40) % 10
    np.savez(tmp_path / f"{name}.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    pool = load(name, tmp_path)
    assert pool.x_train.shape == (30, channels, 8, 8)
    assert np.allclose(pool.mean.flatten(), DATASETS[name].constants[0])
    assert np.allclose(pool.std.flatten(), DATASETS[name].constants[1])
    np.savez(
        tmp_path / f"{name}.npz", x_train=x[:30, ..., [0, 0]], y_train=y[:30], x_test=x[30:, ..., [0, 0]], y_test=y[30:]
    )
    with pytest.raises(UserError, match="channels"):
        load(name, tmp_path)


def test_a_run_on_an_image_set_takes_the_papers_settings(tmp_path: Path, hierfl: Call) -> None:
    mnist_like(tmp_path, "FashionMNIST", ("train", "t10k"))
    code, _, err = hierfl("run", "fedavg", "--data", "fashion-mnist", "--data-root", tmp_path, "--quiet")
    assert code == 2
    assert "100 clients" in err or "fewer than" in err  # 30 images are too few for the default split
    code, _, err = hierfl(
        "run", "fedavg", "--data", "fashion-mnist", "--data-root", tmp_path, "--clients", 4, "--split", "equal",
        "--rounds", 1, "--quiet", "--out", "o",
    )  # fmt: skip
    assert (code, err) == (0, "")
    config = (tmp_path / "o/config.toml").read_text()
    for line in ('network = "mlp:100"', "participation = 0.1", "quorum = 2", "evaluate_every = 5"):
        assert line in config


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if not entry.made])
def test_the_defaults_of_every_named_set_fit_it(name: str) -> None:
    # the true counts of labels and subclasses; the pictures do not matter to the split
    entry = DATASETS[name]
    event = {
        "digits": (1, 8, 8), "sun397": (3, 64, 64), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32),
        "usps": (1, 16, 16), "svhn": (3, 32, 32), "synthetic-digits": (3, 32, 32), "mnist-m": (3, 28, 28),
        "digit-five": (3, 28, 28), "digit-three": (3, 28, 28),
    }.get(name, (1, 28, 28))  # fmt: skip
    fine = {"cifar100": (20, 5, 500, 100), "sun397": (3, 50, 80, 20)}.get(name)
    if fine is None:
        classes, train, test = {"digits": (10, 1437, 360), "emnist": (47, 112_800, 18_800)}.get(
            name, (10, 50_000, 10_000)
        )
        y = [np.arange(n) % classes for n in (train, test)]
        subclasses = None
    else:
        supers, subs, *counts = fine
        subclasses = [np.repeat(np.arange(supers * subs), n) for n in counts]
        y = [s // subs for s in subclasses]
    x = [np.broadcast_to(np.zeros((), np.float32), (len(part), 1)) for part in y]
    given = {} if subclasses is None else {"fine_train": subclasses[0], "fine_test": subclasses[1]}
    if name.startswith("digit-"):
        given = {f"client_{part}": np.array(DOMAINS[name])[np.arange(len(k)) % len(DOMAINS[name])]
                 for part, k in zip(("train", "test"), y, strict=True)}  # fmt: skip
    pool = make_pool(name, x[0], y[0], x[1], y[1], **given)
    fed = Federation.from_pool(pool, entry.clients, entry.split, validation=0.1)
    assert fed.clients == entry.clients
    pictures = Federation.from_arrays(np.zeros((4, *event), np.float32), np.arange(4) % 2, [0, 0, 1, 1], test=0)
    assert architecture(entry.network, pictures).head.features > 1
