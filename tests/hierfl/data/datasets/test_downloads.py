"""Where a set's files come from: said, compared with published sums, and never fetched unasked."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import torchvision
from support.commands import Call
from support.image_sets import cifar_like, mnist_like

from hierfl import UserError
from hierfl.data.datasets.registry import load
from hierfl.data.datasets.sun397 import SUN_HIERARCHY, SUN_SUPERCLASSES
from hierfl.data.datasets.torchvision_layout import LAYOUTS


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
    message = str(refused.value)
    assert f"put {name}.npz (x_train, y_train, x_test, y_test" in message
    assert f"into {tmp_path}" in message
    assert LAYOUTS[name].folder in message
    assert "download failed" in message
    assert "downloading" in caplog.text
    assert not any(path.is_dir() and not any(path.iterdir()) for path in tmp_path.rglob("*"))  # nothing is left behind


@pytest.mark.parametrize("how", [pytest.param("--offline", marks=pytest.mark.slow), "HIERFL_OFFLINE"])
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
    (message,) = caplog.messages  # on standard error, where pytest has no hold of it
    assert re.search(words, message)
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
