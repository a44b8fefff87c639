"""No test of the image sets reaches the network."""

from __future__ import annotations

import pytest
import torchvision


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download fails at once, wherever the tests run."""

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no network here")

    for module in (torchvision.datasets.mnist, torchvision.datasets.cifar, torchvision.datasets.sun397):
        monkeypatch.setattr(module, "download_and_extract_archive", unreachable)
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", unreachable)
    monkeypatch.setattr(torchvision.datasets.mnist, "download_url", unreachable, raising=False)
