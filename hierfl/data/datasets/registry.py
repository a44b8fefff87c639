"""Named data sets, ``.npz`` files and tables as pools: arrays on the host, not yet anybody's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import UserError, unknown
from ..client_names import client_names
from ..partition.split_pool import rows_of
from ..readers.mat import read_npz
from ..readers.safe_files import located, shown
from .synthetic_digits import DIGIT_FIVE, DIGIT_THREE

if TYPE_CHECKING:
    import pandas as pd

    from .synthetic_digits import Made

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Pool:
    """One data set, before it is split among clients.

    Attributes:
        name: what to call it.
        x_train, x_test: inputs, (N, *event): uint8 images (channels first) or float32.
        y_train, y_test: int64 labels 0..classes-1, or float32 responses.
        task: "classification" or "regression".
        classes: number of labels; 0 for regression.
        mean, std: constants that standardise the inputs (after division by 255 for uint8), broadcastable to one
            input; None for inputs that are used as they are.
        fine_train, fine_test: subclass of each example, for concept drift.
        client_train, client_test: whose each example is (or of which domain), where the data say so.
        origin: how the data were made, where they are not the published ones.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    task: Task
    classes: int
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    fine_train: np.ndarray | None = None
    fine_test: np.ndarray | None = None
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    origin: str = ""

    def digest(self) -> str:
        """A fingerprint of the arrays, so that a resumed run notices other data under the same name."""
        h = hashlib.blake2b(digest_size=8)
        for a in (self.x_train, self.y_train, self.x_test, self.y_test, self.fine_train, self.client_train):
            if a is not None:
                h.update(str((a.shape, a.dtype.kind)).encode())
                h.update(np.ascontiguousarray(a if a.dtype.kind != "U" else np.char.encode(a, "utf-8")).tobytes())
        return h.hexdigest()


@dataclass(frozen=True)
class DataSet:
    """A data set that has a name, with the settings a run gets when none are given."""

    about: str
    load: Callable[[Path], Pool]
    clients: int
    split: str
    rounds: int
    participation: float
    evaluate_every: int
    network: str
    quorum: int = 1
    noise: float = 1.0
    #: clients in one plate, where rows are so short that there should be many; 0 for what suits the device
    chunk: int = 0
    #: data that are made anew for every seed of a run
    made: Callable[[int], Pool] | None = None


def load_digits(root: Path) -> Pool:
    """Scikit-learn's embedded 8x8 digits: 1,797 images, four fifths for training, the same ones each time."""
    from sklearn.datasets import load_digits as embedded
    from sklearn.model_selection import train_test_split

    x, y = embedded(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.int64), test_size=0.2, random_state=0, stratify=y
    )
    return Pool("digits", x_train, y_train, x_test, y_test, "classification", 10, *_constants(x_train))


def _constants(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of (N, C, H, W) images, over all entries of anything else."""
    axes = (0, 2, 3) if x.ndim == 4 else None
    scale = 255 if x.dtype == np.uint8 else 1
    mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    shape = (-1, 1, 1) if x.ndim == 4 else ()
    return mean.astype(np.float32).reshape(shape), np.maximum(std, 1e-8).astype(np.float32).reshape(shape)


#: the usual constants of images scaled to [0, 1], per channel: mean, standard deviation
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "emnist": ((0.1751,), (0.3332,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def _images(name: str) -> Callable[[Path], Pool]:
    """A loader of a set in torchvision's layout."""

    def read(root: Path) -> Pool:
        from .torchvision_layout import load_images

        found = load_images(name, root)
        return make_pool(
            name, found.x_train, found.y_train, found.x_test, found.y_test,
            fine_train=found.fine_train, fine_test=found.fine_test,
        )  # fmt: skip

    return read


def _synthetic_regression(seed: int) -> Pool:
    from ..synthetic import synthetic_pool

    return synthetic_pool(seed)[0]


def _mnist_m(root: Path) -> Pool:
    from .synthetic_digits import mnist_m

    def mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        pool = load("mnist", root)
        return pool.x_train, pool.y_train, pool.x_test, pool.y_test

    made = mnist_m(root, mnist)
    return _made("mnist-m", made)


def _synthetic_digits(root: Path) -> Pool:
    from .synthetic_digits import synthetic_digits

    return _made("synthetic-digits", synthetic_digits(root))


def _made(name: str, made: Made) -> Pool:
    pool = make_pool(name, made.x_train, made.y_train, made.x_test, made.y_test)
    return replace(pool, origin=made.origin)


def _domains(name: str, parts: Sequence[str]) -> Callable[[Path], Pool]:
    """A loader of several sets of digits as domains of one."""

    def read(root: Path) -> Pool:
        from .synthetic_digits import resized

        pools = [load(part, root) for part in parts]
        x_train, x_test = (
            np.concatenate([resized(x) for x in xs]) for xs in ([p.x_train for p in pools], [p.x_test for p in pools])
        )
        y_train, y_test = (np.concatenate(ys) for ys in ([p.y_train for p in pools], [p.y_test for p in pools]))
        train, test = (
            np.repeat(np.array(parts), [len(y) for y in ys])
            for ys in ([p.y_train for p in pools], [p.y_test for p in pools])
        )
        pool = make_pool(name, x_train, y_train, x_test, y_test, client_train=train, client_test=test)
        origins = [f"{p.name} {p.origin}" for p in pools if p.origin]
        return replace(pool, origin="; ".join(origins))

    return read


def _paper(name: str, about: str, split: str = "label-skew:5", clients: int = 100, network: str = "mlp:100") -> DataSet:
    """An image set as pFedVEM uses it: 100 rounds, a tenth of the clients reports, two at the least."""
    return DataSet(
        about, _images(name), clients, split, 100, participation=0.1, evaluate_every=5, network=network, quorum=2
    )


BN_CNN = "bncnn:64,64,128:2048,512"
CNN, DEEP_CNN = "cnn:16,32:120,84", "convnet:32,64,128,256,100"

DATASETS: dict[str, DataSet] = {
    "digits": DataSet(
        "8x8 grey digits, 10 classes, 1,797 images, embedded (scikit-learn)",
        load_digits, clients=20, split="label-skew:5", rounds=30, participation=1.0, evaluate_every=1, network="mlp:64",
    ),
    "mnist": _paper("mnist", "28x28 grey digits, 10 classes, 70,000 images"),
    "fashion-mnist": _paper("fashion-mnist", "28x28 grey clothes, 10 classes, 70,000 images"),
    "emnist": _paper(
        "emnist", "28x28 grey letters and digits (balanced), 47 classes, 131,600 images", "dirichlet:0.3", clients=50
    ),
    "cifar10": _paper("cifar10", "32x32 colour photographs, 10 classes, 60,000 images", network=CNN),
    "cifar100": _paper(
        "cifar100", "32x32 colour photographs, 20 superclasses of 5 subclasses, 60,000 images",
        "concept-drift", network=DEEP_CNN,
    ),
    "sun397": _paper(
        "sun397", "64x64 scenes, 3 superclasses of 50 subclasses, 15,000 images", "concept-drift", network=DEEP_CNN
    ),
    "svhn": _paper("svhn", "32x32 house numbers in colour, 10 classes, 99,289 images", network=CNN),
    "usps": _paper("usps", "16x16 grey digits, 10 classes, 9,298 images"),
    "mnist-m": replace(
        _paper("mnist-m", "28x28 MNIST on colour photographs (published, or made here), 70,000 images", network=CNN),
        load=_mnist_m,
    ),
    "synthetic-digits": replace(
        _paper("synthetic-digits", "32x32 digits from fonts (published, or 12,500 made here)", network=CNN),
        load=_synthetic_digits,
    ),
    "digit-five": DataSet(
        "28x28 colour digits of five domains: " + ", ".join(DIGIT_FIVE), _domains("digit-five", DIGIT_FIVE),
        clients=5, split="domains:7291", rounds=50, participation=1.0, evaluate_every=10, network=BN_CNN,
    ),
    "digit-three": DataSet(
        "three of them, which need MNIST alone: " + ", ".join(DIGIT_THREE), _domains("digit-three", DIGIT_THREE),
        clients=3, split="domains:1500", rounds=20, participation=1.0, evaluate_every=10, network=BN_CNN,
    ),
    "fedpop-synthetic": DataSet(
        "FedPop's regression: 100 clients, 5 or 10 rows each, made from the run's seed",
        lambda root: _synthetic_regression(0), clients=100,
        split="natural", rounds=100, participation=1.0, evaluate_every=10, network="projection:2", noise=0.1**0.5,
        chunk=100, made=_synthetic_regression,
    ),
}  # fmt: skip


def load(name: str, root: Path, seed: int = 0) -> Pool:
    """The data set called ``name``: a known name, or the path of an ``.npz`` file.

    Args:
        name: one of :data:`DATASETS`, or ``FILE.npz``.
        root: the folder where data sets lie; ``ROOT/NAME.npz`` comes first, whatever the name.
        seed: of data that are made anew for every one.

    Raises:
        UserError: for an unknown name, or a file that is missing or cannot be used.
    """
    if name.endswith(".npz"):
        return load_npz(Path(name))
    if name not in DATASETS and os.path.isfile(located(name)):
        raise UserError(f"{shown(name)} is no .npz file")
    root = located(root)
    if os.path.lexists(root / f"{name}.npz"):
        pool = load_npz(root / f"{name}.npz")
    elif name in DATASETS:
        known = DATASETS[name]
        pool = known.made(seed) if known.made else known.load(root)
    else:
        raise UserError(
            f"unknown data set {name!r}; known: {', '.join(DATASETS)}; or put your own at {root / name}.npz"
        )
    if name not in CONSTANTS or pool.x_train.dtype != np.uint8:
        return pool
    mean, std = (np.array(c, dtype=np.float32).reshape(-1, 1, 1) for c in CONSTANTS[name])
    if len(mean) != pool.x_train.shape[1]:
        raise UserError(f"{root / name}.npz: {name} has {len(mean)} channels, not {pool.x_train.shape[1]}")
    return replace(pool, mean=mean, std=std)


def defaults(name: str) -> DataSet:
    """What a run on ``name`` takes where nothing is said; an ``.npz`` gets the general ones."""
    general = DataSet(
        "", load_npz, clients=0, split="", rounds=30, participation=1.0, evaluate_every=5, network="mlp:100"
    )
    return DATASETS.get(name, general)


ARRAYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("fine_train", "fine_test", "client_train", "client_test")


def load_npz(path: Path) -> Pool:
    """A pool from an ``.npz`` file (``~`` is expanded).

    It must hold x_train, y_train, x_test and y_test, and may hold fine_train and fine_test (subclasses), client_train
    and client_test (whose each example is; then ``natural`` is a split). Integer targets are labels, floats are
    responses. uint8 inputs are images (channels last or first); they are divided by 255 and standardised per
    channel, other inputs are used as they are. Object arrays are refused: nothing is ever unpickled.

    Raises:
        UserError: for a file that is missing, damaged, too large (see :func:`hierfl.data.readers.safe_files.byte_limit`) or no
            ``.npz``, a missing or object array, shapes that do not fit, inputs that are not finite, labels that are
            no 0..K-1.
    """
    arrays = read_npz(path, ARRAYS, OPTIONAL)
    required = (arrays.pop(k) for k in ARRAYS)
    return make_pool(
        path.stem,
        *required,
        fine_train=arrays.get("fine_train"),
        fine_test=arrays.get("fine_test"),
        client_train=arrays.get("client_train"),
        client_test=arrays.get("client_test"),
    )


def make_pool(
    name: str,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    fine_train: np.ndarray | None = None,
    fine_test: np.ndarray | None = None,
    client_train: np.ndarray | None = None,
    client_test: np.ndarray | None = None,
    task: Task | None = None,
) -> Pool:
    """Checks arrays and makes a pool of them.

    Raises:
        UserError: where they cannot be one data set.
    """
    x_train, x_test = _check_inputs(name, "x_train", x_train), _check_inputs(name, "x_test", x_test)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise UserError(
            f"{name}: x_train {x_train.dtype}{x_train.shape} and x_test {x_test.dtype}{x_test.shape} "
            "do not fit together"
        )
    if 0 in x_train.shape[1:]:
        raise UserError(f"{name}: x_train has shape {x_train.shape}: an input without a number")
    for part, x, others in (
        ("train", x_train, {"y": y_train, "fine": fine_train, "client": client_train}),
        ("test", x_test, {"y": y_test, "fine": fine_test, "client": client_test}),
    ):
        for what, a in others.items():
            if a is not None and np.shape(a) != (len(x),):
                raise UserError(f"{name}: {what}_{part} has shape {np.shape(a)}, not ({len(x)},) as x_{part} asks")
            if a is not None and what == "fine":
                _check_subclasses(f"{name}: fine_{part}", np.asarray(a))
            if a is not None and what == "client":
                client_names(a, f"{name}: client_{part}")
    if not len(x_train):
        raise UserError(f"{name}: x_train is empty")
    if (fine_train is None) != (fine_test is None) or (client_train is None) != (client_test is None):
        raise UserError(f"{name}: fine and client arrays come in pairs, one for train and one for test")
    if task is None:
        task = "classification" if y_train.dtype.kind in "iub" else "regression"
    y_train, y_test, classes = _check_targets(name, y_train, y_test, task)
    if fine_train is not None and fine_test is not None:
        fine_train, fine_test = _subclasses(y_train, fine_train, y_test, fine_test)
    images = x_train.dtype == np.uint8
    if images and x_train.ndim == 3:
        x_train, x_test = x_train[:, None], x_test[:, None]
    if images and x_train.ndim == 4 and x_train.shape[-1] in (1, 3) and x_train.shape[1] not in (1, 3):
        x_train, x_test = (np.ascontiguousarray(np.moveaxis(x, -1, 1)) for x in (x_train, x_test))
    mean, std = _constants(x_train) if images else (None, None)
    return Pool(
        name, x_train, y_train, x_test, y_test, task, classes, mean, std, fine_train, fine_test,
        client_train, client_test,
    )  # fmt: skip


def _subclasses(
    y_train: np.ndarray, fine_train: np.ndarray, y_test: np.ndarray, fine_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Subclass ids that belong to one label each; where they were counted anew in every label, they are made so."""
    pairs = np.stack([np.concatenate([y_train, y_test]), np.concatenate([fine_train, fine_test])])
    distinct, number = np.unique(pairs, axis=1, return_inverse=True)
    if len(np.unique(distinct[1])) == distinct.shape[1]:
        return fine_train, fine_test
    number = number.reshape(-1)
    return number[: len(y_train)], number[len(y_train) :]


def _check_subclasses(where: str, marks: np.ndarray) -> None:
    """Refuses subclasses that cannot be told apart."""
    if marks.dtype.kind not in "biuf":
        raise UserError(f"{where} holds {marks.dtype}, not numbers")
    if marks.dtype.kind == "f" and not np.isfinite(marks).all():
        raise UserError(f"{where} holds values that are NaN or infinite")


def _check_inputs(name: str, array: str, x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{name}: {array} holds {x.dtype}, not numbers")
    if x.ndim < 2:
        raise UserError(
            f"{name}: {array} has shape {x.shape}; the first dimension counts examples, the rest is one input"
        )
    if 0 in x.shape[1:]:
        raise UserError(f"{name}: {array} has shape {x.shape}: an input without features says nothing")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):  # (a number beyond the type is infinite, which is refused)
        x = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    if not np.isfinite(x).all():
        raise UserError(f"{name}: {array} holds {int((~np.isfinite(x)).sum())} values that are NaN or infinite")
    return x


def _check_targets(
    name: str, y_train: np.ndarray, y_test: np.ndarray, task: Task
) -> tuple[np.ndarray, np.ndarray, int]:
    for part, y in (("y_train", y_train), ("y_test", y_test)):
        if np.asarray(y).dtype.kind not in "biuf":
            raise UserError(f"{name}: {part} holds {np.asarray(y).dtype}, not numbers")
        if not np.isfinite(y).all():
            raise UserError(f"{name}: {part} holds values that are NaN or infinite")
    if task == "regression":
        with np.errstate(over="ignore"):
            return y_train.astype(np.float64), y_test.astype(np.float64), 0
    both = np.concatenate([y_train, y_test])
    if (both != np.floor(both)).any() or both.min() < 0:
        raise UserError(f"{name}: labels must be whole numbers from 0, not {both.min()}..{both.max()}")
    present = np.unique(y_train)
    classes = int(present[-1]) + 1
    if len(y_test) and int(y_test.max()) >= classes:
        raise UserError(f"{name}: y_test has label {int(y_test.max())}, out of the range 0..{classes - 1} of y_train")
    if len(present) < classes:
        absent = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise UserError(f"{name}: labels must be 0..K-1, but y_train reaches {classes - 1} and lacks {absent}")
    return y_train.astype(np.int64), y_test.astype(np.int64), classes


def natural_pool(
    x: np.ndarray,
    y: np.ndarray,
    client: Sequence[Any] | np.ndarray,
    x_test: np.ndarray | None,
    y_test: np.ndarray | None,
    client_test: Sequence[Any] | np.ndarray | None,
    test: float,
    seed: int,
    task: Task | None,
    name: str,
    standardise: bool,
) -> Pool:
    """A pool whose rows say whose they are; a fraction of each client's rows becomes its test set if none is given."""
    client = client_names(client, f"{name}: client")
    if client.shape != (len(x),) or y.shape != (len(x),):
        raise UserError(f"{name}: x has {len(x)} rows, y has shape {y.shape}, client has shape {client.shape}")
    given = [a is not None for a in (x_test, y_test, client_test)]
    if any(given) != all(given):
        raise UserError(f"{name}: x_test, y_test and client_test come together")
    if x_test is None or y_test is None or client_test is None:
        if not 0 <= test < 1:
            raise UserError(f"{name}: test must be a fraction in [0, 1), not {test}")
        out = np.zeros(len(x), dtype=bool)
        for c, rows in rows_of(client).items() if test else ():
            rng = np.random.default_rng([seed, *b"test", *c.encode()])
            out[rng.choice(rows, int(test * len(rows)), replace=False)] = True
        x, x_test, y, y_test, client, client_test = (
            x[~out],
            x[out],
            y[~out],
            y[out],
            client[~out],
            client[out],
        )
    pool = make_pool(
        name, x, y, np.asarray(x_test), np.asarray(y_test), task=task,
        client_train=client, client_test=client_names(client_test, f"{name}: client_test"),
    )  # fmt: skip
    if not standardise or pool.mean is not None:
        return pool
    mean, std = pool.x_train.mean(0), pool.x_train.std(0)
    return replace(pool, mean=mean, std=np.where(std > 0, std, 1.0))


def frame_arrays(
    df: pd.DataFrame, client: str, y: str, x: Sequence[str], task: Task | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Task, list[str]]:
    """Inputs, response, client column, task and the labels' names of a table, checked."""
    if isinstance(x, str):
        raise UserError(f"x is a list of columns: x=[{x!r}]")
    if not df.columns.is_unique:
        raise UserError("the table has two columns of one name")
    for column in (client, y, *x):
        if column not in df.columns:
            raise unknown("column", column, map(str, df.columns))
        missing = int(df[column].isna().sum())
        if missing:
            raise UserError(f"column {column!r} has {missing} missing value{'s' * (missing != 1)}")
    words = [column for column in x if df[column].dtype.kind not in "biuf"]
    if words:
        raise UserError(f"column {words[0]!r} holds no numbers; encode it first (for example with pandas.get_dummies)")
    if not x:
        raise UserError("a federation needs at least one input column")
    response = df[y]
    if task is None:
        task = "regression" if response.dtype.kind == "f" else "classification"
    if task == "regression" and response.dtype.kind not in "biuf":
        raise UserError(f"column {y!r} holds no numbers, so it cannot be the response of a regression")
    inputs, who = df[list(x)].to_numpy(dtype=np.float64), client_names(df[client], f"column {client!r}")
    if task == "regression":
        return inputs, response.to_numpy(dtype=np.float64), who, task, []
    words = response.to_numpy()
    labels, target = np.unique(words if response.dtype.kind in "biuf" else words.astype(str), return_inverse=True)
    return inputs, target, who, task, [str(label) for label in labels]
