"""Small data for golden runs, the same each time: numpy's generator is fixed, and so are the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIZES = (40, 7, 33, 14, 12, 5, 31)


def write_data(folder: Path) -> None:
    """Writes all files that cases read."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "blobs.npz", **blobs(0))
    np.savez(folder / "strange.npz", **blobs(1, shift=4.0))
    np.savez(folder / "lines.npz", **lines())
    np.savez(folder / "pictures.npz", **pictures())
    np.savez(folder / "pool.npz", **pool())
    np.savez(folder / "fashion-mnist.npz", **fashion())
    for name, table in tables().items():
        columns = list(table)
        rows = zip(*(table[c] for c in columns), strict=True)
        (folder / f"{name}.csv").write_text(
            "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"
        )


def _clients(sizes: tuple[int, ...]) -> np.ndarray:
    return np.repeat([f"client-{j}" for j in range(len(sizes))], sizes)


def blobs(seed: int, classes: int = 3, features: int = 6, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Classes with other centres at each of seven clients."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(classes, features)) + shift
    moves = rng.normal(size=(len(SIZES), classes, features))
    arrays = {}
    for part, sizes in (("train", SIZES), ("test", (9,) * len(SIZES))):
        who = np.repeat(np.arange(len(sizes)), sizes)
        y = np.concatenate([np.arange(n) % classes for n in sizes])
        x = centres[y] + moves[who, y] + rng.normal(size=(len(y), features))
        arrays |= {f"x_{part}": x.astype(np.float32), f"y_{part}": y, f"client_{part}": _clients(sizes)}
    return arrays


def lines(features: int = 4) -> dict[str, np.ndarray]:
    """A regression with other slopes at each of seven clients."""
    rng = np.random.default_rng(2)
    w = rng.normal(size=features) + 0.7 * rng.normal(size=(len(SIZES), features))
    arrays = {}
    for part, sizes in (("train", SIZES), ("test", (8,) * len(SIZES))):
        who = np.repeat(np.arange(len(sizes)), sizes)
        x = rng.normal(size=(len(who), features))
        y = (x * w[who]).sum(1) + 0.3 + 0.5 * rng.normal(size=len(who))
        arrays |= {f"x_{part}": x.astype(np.float32), f"y_{part}": y.astype(np.float32)}
        arrays[f"client_{part}"] = _clients(sizes)
    return arrays


def pictures() -> dict[str, np.ndarray]:
    """Grey pictures of 16 by 16, three classes, four clients."""
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 120, (3, 16, 16))
    arrays = {}
    for part, sizes in (("train", (13, 8, 20, 5)), ("test", (5,) * 4)):
        y = np.concatenate([np.arange(n) % 3 for n in sizes])
        x = (patterns[y] + rng.integers(0, 130, (len(y), 16, 16))).astype(np.uint8)
        arrays |= {f"x_{part}": x, f"y_{part}": y, f"client_{part}": _clients(sizes)}
    return arrays


def pool(classes: int = 5, fine: int = 4) -> dict[str, np.ndarray]:
    """Nobody's examples, with subclasses, to be split."""
    rng = np.random.default_rng(4)
    arrays = {}
    for part, n in (("train", 400), ("test", 120)):
        y = np.arange(n) % classes
        sub = y * fine + (np.arange(n) // classes) % fine
        x = np.eye(classes * fine)[sub, :6] + y[:, None] / classes + 0.5 * rng.normal(size=(n, 6))
        arrays |= {f"x_{part}": x.astype(np.float32), f"y_{part}": y, f"fine_{part}": sub}
    return arrays


def fashion() -> dict[str, np.ndarray]:
    """Tiny pictures under the name of a data set that paper tables run on."""
    rng = np.random.default_rng(5)
    y = np.arange(200) % 10
    x = rng.integers(0, 256, (200, 4, 4), dtype=np.uint8)
    return {"x_train": x[50:], "y_train": y[50:], "x_test": x[:50], "y_test": y[:50]}


def tables() -> dict[str, dict[str, np.ndarray]]:
    """Rows of twelve sites: gaussian, binomial and Poisson responses, a known standard error, a factor."""
    rng = np.random.default_rng(6)
    sizes = tuple(int(n) for n in rng.integers(2, 25, 12))
    who = np.repeat(np.arange(12), sizes)
    x, t = rng.normal(size=len(who)).round(3), rng.uniform(0, 3, len(who)).round(3)
    b = rng.normal(size=(12, 2)) * (0.8, 0.4)
    eta = 0.3 + 0.6 * x + b[who, 0] + b[who, 1] * x
    base = {"site": np.array([f"s{j:02d}" for j in who]), "x": x, "t": t, "kind": np.array(list("abc"))[who % 3]}
    gauss = (eta + np.sin(2 * t) + 0.5 * rng.normal(size=len(who))).round(4)
    binary = (rng.random(len(who)) < 1 / (1 + np.exp(-eta))).astype(int)
    error = rng.uniform(0.3, 1.0, len(who)).round(3)
    return {
        "gauss": {**base, "y": gauss},
        "binary": {**base, "y": binary},
        "counts": {**base, "y": rng.poisson(np.exp(eta.clip(-3, 3)))},
        "known": {**base, "y": (gauss + error * rng.normal(size=len(who))).round(4), "se": error},
    }
