"""A first layer of the coordinator's choice, whose gradient is a list of single images.

All hidden units look along one direction, each with a threshold of its own. An image moves the units whose thresholds
it passes, so that two neighbours' changes differ by the images between their thresholds: where that is one image, the
quotient of the weights' and the bias's difference is the image (Fowl et al., Robbing the Fed, ICLR 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from hierfl.experiments.federate.draft import draft
from hierfl.inference.state import State

from ..studies import written
from .coordinator import Coordinator

#: of hidden weights; of the head's
SMALL, HEAD = 1e-2, 1e-2
#: what a site's bounds let pass: so many of its own last steps, or this share of a value's size
OWN_STEPS, SHARE = 100.0, 0.1


def first_layer(shared: State) -> str:
    """Name of the weights that meet the image."""
    return next(name for name in shared if name.endswith("1.weight"))


def imprinted(shared: State, direction: np.ndarray, spread: float, seed: int) -> State:
    """Values for a broadcast.

    Args:
        shared: of that form; an mlp with one hidden layer.
        direction: (pixels,), of length 1 in absolute numbers.
        spread: standard deviation of images along it.
        seed: of the head.
    """
    weight = first_layer(shared)
    bias, units = weight.replace("weight", "bias"), len(shared[weight])
    thresholds = norm.ppf((np.arange(units) + 0.5) / units) * spread
    made = {name: value.clone() for name, value in shared.items()}
    made[weight] = torch.as_tensor(np.tile(direction * SMALL, (units, 1))).to(shared[weight])
    made[bias] = torch.as_tensor(-thresholds * SMALL).to(shared[bias])
    classes = len(shared["w"]) // (units + 1)
    own = torch.randn(classes, 1, generator=torch.Generator().manual_seed(seed)) * HEAD
    head = torch.zeros(classes, units + 1)
    head[:, :units] = own
    made["w"] = head.flatten().to(shared["w"])
    return made


def candidates(message: State, sent: State) -> np.ndarray:
    """Images (K, pixels), standardised, that a message shows if one alone lies between two thresholds."""
    weight, moved = first_layer(sent), changes(message, sent)
    dw, db = moved[weight].numpy(), moved[weight.replace("weight", "bias")].numpy()
    dw, db = np.vstack([dw, np.zeros(dw.shape[1])]), np.r_[db, 0.0]
    dw, db = dw[:-1] - dw[1:], db[:-1] - db[1:]
    some = np.abs(db) > 1e-12
    return dw[some] / db[some, None]


def recovered(inputs: np.ndarray, images: np.ndarray, mean: float, std: float) -> set[int]:
    """Which images (n, pixels) of bytes are known to the pixel."""
    pixels = (inputs * std + mean) * 255
    return {int(k) for k in range(len(images)) if len(pixels) and np.abs(pixels - images[k]).max(1).min() < 0.5}


def direction(pixels: int, k: int) -> tuple[np.ndarray, float]:
    """The k-th along which images are told apart, and how far they lie apart in it."""
    v = np.ones(pixels) if k == 0 else np.random.default_rng(k).normal(size=pixels)
    v /= np.abs(v).sum()
    return v, 0.35 if k == 0 else float(np.sqrt((v**2).sum()))


def moments(totals: State) -> tuple[float, float]:
    """Mean and standard deviation of pixels from 0 to 1, of the sums that everybody is told."""
    n, total, square = (float(totals[name].flatten()[0]) for name in ("n", "total", "square"))
    return total / n / 255, max((square / n - (total / n) ** 2) ** 0.5 / 255, 1e-8)


def image_study(
    folder: Path, method: str, sites: list[str], x: np.ndarray, y: np.ndarray, units: int, **settings: object
) -> Path:
    """study.toml of a method with an mlp, and ``sites[0].npz`` with these images; others are not needed."""
    folder.mkdir(parents=True, exist_ok=True)
    blank = np.zeros((10, 8, 8), np.uint8)
    np.savez(folder / "sample.npz", x_train=blank, y_train=np.arange(10), x_test=blank[:2], y_test=np.arange(2))
    np.savez(folder / f"{sites[0]}.npz", x_train=x, y_train=y, x_test=x[:12], y_test=y[:12])
    run = {name: settings.pop(name) for name in ("rounds",) if name in settings}
    path = folder / "study.toml"
    given = {"network": f"mlp:{units}", "validation_fraction": 0.0, **run}
    text = draft(method, folder / "sample.npz", sites, "images", given, settings, out=path)
    return written(folder, text, privacy={"new_clients": False, "least_rows": 1})


def attack(
    site: Coordinator,
    shared: State,
    images: np.ndarray,
    rounds: Sequence[int],
    *,
    walks: bool = False,
    restarts: bool = False,
) -> list[int]:
    """Images known to the pixel after each request; rounds may repeat.

    Args:
        site: prepared.
        shared: what an honest server broadcasts first.
        images: the truth, (n, pixels) of bytes.
        rounds: number of the round of each request.
        restarts: whether the server says with every request that it has begun again.
        walks: whether it begins honestly and goes on in steps that a site's bounds let pass.
    """
    mean, std = moments(site.totals[0])
    known: set[int] = set()
    counts, last, moved = [], None, dict.fromkeys(shared, 0.0)
    for k, number in enumerate(rounds):
        target = imprinted(shared, *direction(images.shape[1], k), seed=k)
        sent = target if not walks else shared if last is None else step_towards(target, last, shared, moved)
        more = {"restart": k} if restarts else {}
        message = site.round(number, sent, counted=max(number - 1, 0), **more)
        if message is not None:
            last, moved = sent, {name: _rms(value) for name, value in changes(message, sent).items()}
            near = all(torch.equal(sent[name], target[name]) for name in sent)
            known |= recovered(candidates(message, sent), images, mean, std) if near else set()
        counts.append(len(known))
    return counts


def step_towards(target: State, last: State, first: State, moved: Mapping[str, float]) -> State:
    """Half of the longest step that a site's bounds let pass, or the target where it is nearer.

    Args:
        target: where to go.
        last: what was broadcast last.
        first: what every fit begins with.
        moved: root mean squares of what the site's own training has moved last, which its message says.
    """
    values = {}
    for name, value in target.items():
        longest = max(OWN_STEPS * moved.get(name, 0.0), SHARE * max(_rms(last[name]), _rms(first[name]))) / 2
        way = _rms(value - last[name])
        values[name] = value if way <= longest else last[name] + (value - last[name]) * (longest / way)
    return values


def changes(message: State, sent: State) -> State:
    """What a round has moved, by the values' names."""
    changed = {}
    for name, value in message.items():
        group, _, own = name.partition("|")
        if own in sent:
            share = message.get(f"{group}|weight", torch.tensor(1.0))
            changed[own] = value.double() / share.double() - sent[own].double()
    return changed


def _rms(value: torch.Tensor) -> float:
    return float(value.double().square().mean().sqrt())
