"""What a benchmark's round consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hierfl.data.arrays import make_pool
from hierfl.data.datasets.registry import BN_CNN, CNN
from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture

from ..methods import load, shipped_settings


@dataclass(frozen=True)
class Setting:
    """What a round consists of; the method's other settings are its defaults.

    Attributes:
        about: in words.
        event: the shape of an image.
        examples: N, over all clients.
        clients: J.
        network: the base, or encoder and base.
        batch: B of the (base) phase that goes by minibatches.
        method: whose round.
        split: label-skew:5 of ten classes with shared cuts makes sizes differ a hundredfold.
        classes: of the labels.
        beside: another method, whose round on the same data and with the same settings of the base is timed too.
        participation: probability with which a client reports.
        chosen: the data set whose shipped settings each method has, minibatches too; "" for none.
        settings: of the method, where they are not its defaults.
        more: further contestants by name, and how each differs from this.
        rounds: in a turn of each contestant, where rounds differ; what is said is their mean.
    """

    about: str
    event: tuple[int, ...]
    examples: int
    clients: int
    network: str
    batch: int
    method: str = "pfedvem"
    split: str = "label-skew:5,redraw"
    classes: int = 10
    beside: str = ""
    participation: float = 0.1
    chosen: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: int = 1


SETTINGS = {
    "digits": Setting("8x8 images, the main job's size", (1, 8, 8), 1_400, 20, "mlp:64", 10),
    "fashion-mnist": Setting("28x28 images, MLP", (1, 28, 28), 60_000, 100, "mlp:100", 50),
    "cifar10": Setting("32x32 colour images, CNN; a fifth of the clients", (3, 32, 32), 10_000, 20, CNN, 10),
    "digit-three": Setting(
        "28x28 colour images, pFedV's network; a fifth of the images", (3, 28, 28), 900, 3, BN_CNN, 32, "pfedv", "equal"
    ),
    "many": Setting(
        "16 numbers, a network of 78: thousands of clients",
        (1, 4, 4),
        60_000,
        1_000,
        "mlp:4",
        50,
        split="equal",
        classes=2,
    ),
    "fashion-mnist-fedrep": Setting("28x28 images, MLP: FedRep", (1, 28, 28), 60_000, 100, "mlp:100", 50, "fedrep"),
    "fashion-mnist-pfedeb": Setting(
        "28x28 images, MLP: PFedEB beside PFedVEM, all report",
        (1, 28, 28),
        60_000,
        100,
        "mlp:100",
        50,
        "pfedeb",
        beside="pfedvem",
        participation=1.0,
    ),
    "fashion-mnist-chosen": Setting(
        "28x28 images, MLP: PFedEB beside PFedVEM, each with its own settings, a tenth reports",
        (1, 28, 28),
        60_000,
        100,
        "mlp:100",
        0,
        "pfedeb",
        beside="pfedvem",
        chosen="fashion-mnist",
    ),
    "fashion-mnist-pfedhb": Setting(
        "28x28 images, MLP: PFedHB with all its parts, beside FedAvg and PFedVEM; a fifteenth of the images",
        (1, 28, 28),
        4_000,
        20,
        "mlp:100",
        50,
        "pfedhb",
        beside="pfedvem",
        participation=1.0,
        settings={"features": "on"},
        more={
            "pfedhb, shares and heads": {"settings": {}},
            "pfedhb, shares alone": {"settings": {"heads": "off"}},
            "fedavg": {"method": "fedavg", "settings": {}},
        },
        rounds=2,
    ),
}


def choose_setting(name: str, clients: int | None = None, batch: int | None = None) -> Setting:
    """A named setting, with other sizes where they are said.

    Raises:
        UserError: for an unknown name or a size that cannot be.
    """
    if name not in SETTINGS:
        raise unknown("benchmark", name, SETTINGS)
    setting = SETTINGS[name]
    if clients is not None and clients < 1:
        raise UserError(f"a benchmark needs at least one client, not {clients}")
    if clients is not None and clients % 2 and setting.split.startswith("label-skew"):
        raise UserError(
            f"a benchmark needs an even number of clients (two share a shuffle of the labels), not {clients}"
        )
    if batch is not None and batch < 1:
        raise UserError(f"a batch needs at least one example, not {batch}")
    if batch is not None and setting.chosen:
        raise UserError(f"{name} takes no --batch: each method has its own")
    return replace(setting, clients=clients or setting.clients, batch=batch or setting.batch)


def prepare(setting: Setting, device: str = "cpu", chunk: int = 0, **options: Any) -> Fit:
    """A fit to noise; everyone trains, of most settings a tenth reports.

    Args:
        setting: of what.
        device, chunk, options: of the fit.

    Raises:
        UserError: for a device that is not there.
    """
    rng = np.random.default_rng(0)
    tests = setting.examples // 6 // setting.classes * setting.classes  # as the true sets have
    total = setting.examples + tests
    x = rng.integers(0, 256, (total, *setting.event), dtype=np.uint8)
    y = np.arange(total) % setting.classes
    pool = make_pool("noise", x[tests:], y[tests:], x[:tests], y[:tests])
    federation = Federation.from_pool(pool, setting.clients, setting.split, validation=0.0)
    loaded = load(setting.method)
    if setting.chosen:
        own, _ = shipped_settings(loaded.cls.name, setting.chosen)
    else:
        names = [name for name in ("base_batch", "batch") if name in loaded.cls.Settings.__dataclass_fields__]
        own = {**dict.fromkeys(names[:1], setting.batch), **setting.settings}
    method = loaded.cls(architecture(setting.network, federation, latent=loaded.cls.latent), **own)
    quorum = min(2, setting.clients)
    how = Options(
        rounds=10**6, participation=setting.participation, quorum=quorum, device=device, chunk=chunk, **options
    )
    return Fit(method, federation, how)
