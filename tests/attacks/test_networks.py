"""What a site's messages say of single images, without a gate and behind one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.attacks import imprint, inversion, membership
from support.attacks.coordinator import initial, plain
from support.attacks.gated import Hospital

SITES = ["north", "south", "east"]
#: settings that make an attack easy, and that a study may have
ONE_STEP = {"batch": 1000, "epochs": 1}


def test_an_imprinted_first_layer_shows_images_to_the_pixel(tmp_path: Path) -> None:
    """Over different rounds, each asked once."""
    x, y = membership.digits(150)
    path = imprint.image_study(tmp_path, "fedavg", SITES, x, y, 60, rounds=6, **ONE_STEP)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.npz")
    assert site.prepared(), site.refusals
    images = x.reshape(len(x), -1).astype(float)
    recovered = imprint.attack(site, initial(site.study, site.totals), images, list(range(1, 7)))
    assert recovered[-1] > recovered[0] > 0
    assert recovered[-1] > 20


@pytest.mark.parametrize(("images", "steps", "least"), [(1, 1, 1), (2, 5, 2), (32, 5, 0)])
def test_an_honest_broadcast_shows_few_images_in_its_gradient(
    images: int, steps: int, least: int, tmp_path: Path
) -> None:
    """One and two are seen, and of thirty two hardly any."""
    x, y = (part[10 : 10 + images] for part in membership.digits(40))
    if images == 1:  # a site has two at least
        x, y = np.repeat(x, 2, 0), np.repeat(y, 2)
    how = {**ONE_STEP, "epochs": steps, "momentum": 0.0, "lr": 0.1}
    path = imprint.image_study(tmp_path, "fedavg", SITES, x, y, 32, rounds=2, **how)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.npz")
    assert site.prepared(), site.refusals
    sent = initial(site.study, site.totals)
    message = site.round(1, sent)
    assert message is not None
    quotients = inversion.quotients(imprint.changes(message, sent), sent)
    error = inversion.errors(quotients, x[:images].reshape(images, -1), *imprint.moments(site.totals[0]))
    assert least <= (error < inversion.SEEN).sum() <= max(least, 3)


def test_who_was_in_a_study_shows_in_the_global_model() -> None:
    """Likelihood ratio with shadow models: far from a coin where a model is larger than its data."""
    x, y = membership.digits(50)
    settings = {"lr": 0.1, "batch": 30, "epochs": 3}
    fitted = membership.network("fedavg", x, y, 2, network="mlp:16", settings=settings, rounds=5, evaluate_every=5)
    attack = membership.run(fitted, 10, 50)
    assert 0.6 < attack.auc < 0.95
    assert attack.gap > 0


def test_an_attack_that_knows_nothing_is_a_coin() -> None:
    rng = np.random.default_rng(0)
    attack = membership.run(lambda member, seed: rng.normal(size=len(member)), 32, 400)
    assert abs(attack.auc - 0.5) < 0.02
    assert attack.tpr < 0.02


def test_means_of_a_class_of_one_image_are_not_approved(north: Hospital, tmp_path: Path) -> None:
    """With networks allowed, too."""
    x, y = membership.digits(150)
    path = imprint.image_study(tmp_path, "fedproto", list(SITES), x, y, 10, rounds=2)
    failing = north.proposal(north.study(path), tmp_path / "north.npz", ["networks"]).failing
    assert "label counts" in failing


def images_known(north: Hospital, folder: Path, rounds: list[int], *, walks: bool) -> tuple[list[int], list[str]]:
    """To the pixel, behind the gate of a site that allows networks; and the classes of refusals."""
    x, y = membership.digits(150)
    how = {"batch": 1000, "epochs": 1, "lr": 10.0}
    path, data = imprint.image_study(folder, "fedavg", list(SITES), x, y, 60, rounds=6, **how), folder / "north.npz"
    assert north.failing(north.study(path), data) == ["networks"]
    site = north.approved(north.study(path), data, allow=["networks"])
    assert site.prepared()
    truth = x.reshape(len(x), -1).astype(float)
    recovered = imprint.attack(site, initial(site.study, site.totals), truth, rounds, walks=walks)
    return recovered, site.classes()


def test_a_first_broadcast_of_imprinted_layers_is_refused(north: Hospital, tmp_path: Path) -> None:
    """It is what every fit begins with, or nothing; and it has one try."""
    assert images_known(north, tmp_path, [1] * 4, walks=False) == ([0] * 4, ["bounds", *["answered"] * 3])


def test_whoever_allows_networks_allows_images_to_be_read(north: Hospital, tmp_path: Path) -> None:
    """No promise is broken: bounds delay imprinted layers by a round. It is why networks need the site's word."""
    recovered, classes = images_known(north, tmp_path, list(range(1, 7)), walks=True)
    assert recovered[0] == 0
    assert recovered[-1] > 20
    assert classes == []
