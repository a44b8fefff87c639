"""Federations with known numbers, made on the spot."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from hierfl import Federation
from hierfl.data.arrays import make_pool


def blobs(
    sizes: list[int], classes: int = 3, features: int = 4, seed: int = 0, test: int = 12, validation: float = 0.0
) -> Federation:
    """Clients of given sizes with Gaussian classes whose centres differ a little between clients; float64."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(classes, features))

    def draw(counts: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = np.concatenate([rng.permutation(np.arange(n) % classes) for n in counts])
        who = np.repeat(np.arange(len(counts)), counts)
        shift = rng.normal(size=(len(counts), classes, features))
        return centres[y] + shift[who, y] + rng.normal(size=(len(y), features)), y, who

    x, y, who = draw(sizes)
    x_test, y_test, who_test = draw([test] * len(sizes))
    names = np.array([f"place-{j:02d}" for j in range(len(sizes))])
    return Federation.from_arrays(
        x, y, names[who], x_test=x_test, y_test=y_test, client_test=names[who_test], validation=validation
    ).to(dtype=torch.float64)


def slopes(sizes: list[int], features: int = 2, noise: float = 0.5, seed: int = 0) -> Federation:
    """A linear-Gaussian federation: y = w_j . x + noise, w_j ~ N(w, 1); float64."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(who), features))
    w = rng.normal(size=features) + rng.normal(size=(len(sizes), features))
    y = (x * w[who]).sum(1) + 0.3 + noise * rng.normal(size=len(who))
    return Federation.from_arrays(x, y, who, test=0.0, task="regression").to(dtype=torch.float64)


def stays(clients: int = 20, rows: int = 30) -> pd.DataFrame:
    """Costs of stays in hospitals, in euro: 5,000 + 80 (age - 60) + hospital (sd 300) + N(0, 500^2)."""
    rng, n = np.random.default_rng(0), clients * rows
    who, age = np.repeat(np.arange(clients), rows), rng.normal(60, 12, n)
    cost = 5000 + 80 * (age - 60) + rng.normal(0, 300, clients)[who] + rng.normal(0, 500, n)
    return pd.DataFrame({"hospital": [f"h{j}" for j in who], "age": age, "cost": cost})


def costs(sizes: list[int]) -> Federation:
    """The first so many rows of hospitals' stays, a fifth of them test data; float64."""
    df = stays(len(sizes))
    kept = df[df.groupby("hospital").cumcount() < df.hospital.str[1:].astype(int).map(dict(enumerate(sizes)))]
    return Federation.from_frame(kept, client="hospital", y="cost", x=["age"]).to(dtype=torch.float64)


def pictures() -> Federation:
    """Twenty small pictures at two clients; float64."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(20, 1, 16, 16, generator=rng, dtype=torch.float64).numpy()
    y = (torch.arange(20) % 3).numpy()
    return Federation.from_arrays(x, y, (torch.arange(20) % 2).numpy(), test=0.0, validation=0.0).to(
        dtype=torch.float64
    )


def image_pool(n: int = 600, classes: int = 10, seed: int = 0, fine: int = 0) -> object:
    """A pool of tiny float inputs with balanced labels (and ``fine`` subclasses of each), for partitions."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    sub = (np.arange(n) // classes) % fine if fine else None
    fine_ids = None if sub is None else y * fine + sub
    x = rng.normal(size=(n, 3))
    cut = int(0.8 * n)
    return make_pool(
        "toy", x[:cut], y[:cut], x[cut:], y[cut:],
        fine_train=None if fine_ids is None else fine_ids[:cut],
        fine_test=None if fine_ids is None else fine_ids[cut:],
    )  # fmt: skip
