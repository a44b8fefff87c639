"""Loaders of image sets, on tiny files in each true format."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torchvision
from PIL import Image
from support.commands import Call

from hierfl import Federation, UserError
from hierfl.data.arrays import make_pool
from hierfl.data.datasets.cifar import CIFAR100
from hierfl.data.datasets.domains import DIGIT_FIVE, DIGIT_THREE
from hierfl.data.datasets.registry import DATASETS, load
from hierfl.data.datasets.sun397 import SUN_HIERARCHY, SUN_SUPERCLASSES
from hierfl.data.datasets.torchvision_layout import LAYOUTS
from hierfl.nn.networks.build import architecture

RNG = np.random.default_rng(0)
DOMAINS = {"digit-five": DIGIT_FIVE, "digit-three": DIGIT_THREE}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download fails at once, wherever the tests run."""

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no network here")

    for module in (torchvision.datasets.mnist, torchvision.datasets.cifar, torchvision.datasets.sun397):
        monkeypatch.setattr(module, "download_and_extract_archive", unreachable)
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", unreachable)
    monkeypatch.setattr(torchvision.datasets.mnist, "download_url", unreachable, raising=False)


def idx(path: Path, array: np.ndarray) -> None:
    """The MNIST family's format: magic number, sizes, bytes; big-endian."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def mnist_like(root: Path, folder: str, stems: tuple[str, str]) -> dict[str, np.ndarray]:
    arrays = {}
    for part, stem, n in zip(("train", "test"), stems, (30, 20), strict=True):
        x, y = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n) % 10
        idx(root / folder / "raw" / f"{stem}-images-idx3-ubyte", x)
        idx(root / folder / "raw" / f"{stem}-labels-idx1-ubyte", y)
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return arrays


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


def cifar_like(kind: str, root: Path) -> np.ndarray:
    """Tiny batches of CIFAR; their images, training and test."""
    sets = getattr(torchvision.datasets, kind)
    folder = root / sets.base_folder
    folder.mkdir(parents=True)
    images, every = [], sorted(name for names in CIFAR100.values() for name in names)

    def dump(name: str, content: dict) -> None:
        (folder / name).write_bytes(pickle.dumps(content))

    for attribute in ("train_list", "test_list"):
        for name, _ in getattr(sets, attribute):
            n = 200 if kind == "CIFAR100" else 20
            x = RNG.integers(0, 256, (n, 3 * 32 * 32), dtype=np.uint8)
            images.append(x)
            labels = (
                {"fine_labels": [k % 100 for k in range(n)]}
                if kind == "CIFAR100"
                else {"labels": [k % 10 for k in range(n)]}
            )
            dump(name, {"data": x, **labels})
    names = {sets.meta["key"]: every if kind == "CIFAR100" else [str(k) for k in range(10)]}
    dump(sets.meta["filename"], names)
    return np.concatenate(images)


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
        place = folder / name.strip("/")
        place.mkdir(parents=True)
        for k in range(images):
            colour = (20 * number, 10 * k, 100)
            Image.new("RGB" if k else "L", (80 + k, 100), colour if k else 9).save(place / f"sun_{k:03d}.jpg")
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_that_is_nowhere_says_which_files_go_where(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "sun397":
        (tmp_path / SUN_HIERARCHY).parent.mkdir()
        with pd.ExcelWriter(tmp_path / SUN_HIERARCHY) as writer:
            columns = {"category": ["/a/a0"], **{key: [1] for key in SUN_SUPERCLASSES}}
            pd.DataFrame(columns).to_excel(writer, sheet_name="SUN397", startrow=1)
    with pytest.raises(UserError) as refused:
        load(name, tmp_path)
    said = str(refused.value)
    assert f"put {name}.npz (x_train, y_train, x_test, y_test" in said
    assert f"into {tmp_path}" in said
    assert LAYOUTS[name].folder in said
    assert "download failed" in said
    assert "downloading" in caplog.text
    assert not any(path.is_dir() and not any(path.iterdir()) for path in tmp_path.rglob("*"))  # nothing is left behind


@pytest.mark.parametrize("how", ["--offline", "HIERFL_OFFLINE"])
def test_nothing_is_downloaded_offline(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hierfl: Call
) -> None:
    monkeypatch.delenv("HIERFL_OFFLINE", raising=False)
    tried = []
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", lambda *args, **kwargs: tried.append(args))
    if how == "HIERFL_OFFLINE":
        monkeypatch.setenv(how, "1")
    option = [how] * (how == "--offline")
    for command in (
        ("run", "fedavg", "--data", "mnist"), ("run", "fedavg", "--ood", "usps", "-T", 1),
        ("ablate", "pfedvem", "--data", "cifar10"), ("tune", "fedavg", "lr=0.1,0.2", "--data", "svhn"),
        ("table", "pfedvem-1", "--data", "fashion-mnist"),
    ):  # fmt: skip
        code, _, err = hierfl(*command, *option)
        assert code != 0
        assert "--offline (HIERFL_OFFLINE) forbids to download it; put" in err
        assert "Traceback" not in err
    assert not tried
    assert not caplog.messages
    assert os.environ.get("HIERFL_OFFLINE") == ("1" if how == "HIERFL_OFFLINE" else None)  # it holds for the call


def test_offline_is_of_the_call_and_not_of_the_run(tmp_path: Path, hierfl: Call) -> None:
    mnist_like(tmp_path / "data", "MNIST", ("train", "t10k"))
    common = ("fedavg", "--data", "mnist", "-J", 2, "--split", "iid", "-T", 1, "--participation", 1, "--quorum", 1)
    code, _, err = hierfl("run", *common, "--offline", "--quiet", "--out", "run")
    assert code == 0, err
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert "offline" not in config["run"]
    (tmp_path / "data").rename(tmp_path / "away")
    code, _, err = hierfl("run", "--resume", "run", "--offline")
    assert code == 2
    assert "forbids" in err
    code, _, err = hierfl("report", "run", "--offline")
    assert code == 2
    assert "forbids" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion-mnist", r"downloading 31 MB from fashion-mnist\.s3-website\S+ \(http, not encrypted\)$"),
        ("cifar10", r"downloading 170 MB from www\.cs\.toronto\.edu$"),
        ("svhn", r"downloading 246 MB from ufldl\.stanford\.edu \(http, not encrypted\)$"),
        ("usps", r"downloading 9 MB from www\.csie\.ntu\.edu\.tw$"),
    ],
)
def test_what_is_downloaded_from_where_is_said_first_even_quietly(
    name: str, words: str, hierfl: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HIERFL_OFFLINE", raising=False)
    code, _, err = hierfl("run", "fedavg", "--data", name, "--quiet")
    assert code == 2
    (said,) = caplog.messages  # (on standard error, where pytest has no hold of it)
    assert re.search(words, said)
    assert re.fullmatch(f"error: {name} is not in [^\n]*download failed[^\n]*\n", err)


def test_a_download_is_compared_with_the_published_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is fetched has its sum said to torchvision, which refuses others."""
    asked = []

    def fetch(url: str, root: str, filename: str | None = None, md5: str | None = None, **kwargs: object) -> None:
        asked.append((url, md5))
        raise OSError("seen")

    monkeypatch.delenv("HIERFL_OFFLINE", raising=False)
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", fetch)
    for name in LAYOUTS:
        if name != "sun397":
            with pytest.raises(UserError, match="download failed"):
                load(name, tmp_path)
    assert len(asked) >= len(LAYOUTS) - 1
    assert all(md5 and len(md5) == 32 for _, md5 in asked)


def test_a_set_that_is_fetched_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From torchvision's archives to arrays, in each of their ways of packing."""
    monkeypatch.delenv("HIERFL_OFFLINE", raising=False)
    source = tmp_path / "source"
    mnist = mnist_like(source, "MNIST", ("train", "t10k"))
    emnist = mnist_like(source, "EMNIST", ("emnist-balanced-train", "emnist-balanced-test"))
    images = cifar_like("CIFAR10", source)
    archives = {file.name + ".gz": gzip.compress(file.read_bytes()) for file in (source / "MNIST/raw").iterdir()}
    with tarfile.open(tmp_path / "tar", "w:gz") as tar:
        tar.add(source / "cifar-10-batches-py", "cifar-10-batches-py")
    archives["cifar-10-python.tar.gz"] = (tmp_path / "tar").read_bytes()
    with zipfile.ZipFile(tmp_path / "zip", "w") as packed:
        for file in (source / "EMNIST/raw").iterdir():
            packed.writestr(f"gzip/{file.name}.gz", gzip.compress(file.read_bytes()))
    archives["gzip.zip"] = (tmp_path / "zip").read_bytes()

    def fetch(url: str, root: str, filename: str | None = None, md5: str | None = None) -> None:
        Path(root).mkdir(parents=True, exist_ok=True)
        (Path(root) / (filename or Path(url).name)).write_bytes(archives[Path(url).name])

    monkeypatch.setattr(torchvision.datasets.utils, "download_url", fetch)
    root = tmp_path / "root"
    assert (load("mnist", root).x_test[:, 0] == mnist["x_test"]).all()
    assert (load("emnist", root).x_test[:, 0] == emnist["x_test"].swapaxes(1, 2)).all()
    assert not (root / "EMNIST/raw/gzip").exists()
    assert (load("cifar10", root).x_train.reshape(100, -1) == images[:100]).all()


def test_a_second_mirror_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(url: str, *args: object, **kwargs: object) -> None:
        asked.append(url)
        raise OSError("not here")

    monkeypatch.delenv("HIERFL_OFFLINE", raising=False)
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", fetch)
    with pytest.raises(UserError, match="not here; not here"):
        load("mnist", tmp_path)
    assert len({Path(url).name for url in asked}) == 1
    assert len(asked) == len(torchvision.datasets.MNIST.mirrors) == 2


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


def test_a_damaged_set_is_not_downloaded_over(tmp_path: Path) -> None:
    mnist_like(tmp_path, "MNIST", ("train", "t10k"))
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="mnist in .*MNIST is incomplete or damaged"):
        load("mnist", tmp_path)
    assert len(path.read_bytes()) == 1000
    path.unlink()
    with pytest.raises(UserError, match="incomplete or damaged"):
        load("mnist", tmp_path)


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
