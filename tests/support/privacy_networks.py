"""Networks against epsilon, measured; tables of docs/privacy-networks.md.

    python tests/support/privacy_networks.py FOLDER PART OUT.csv

PART is digits, fashion-mnist, settings or membership. FOLDER/PART/*.json has the numbers of each fit; fits that are
there are not computed again. OUT.csv has means over seeds and their standard errors. Epsilon "none" is the plain method
with settings of its own; "clipped" has the settings of the private fits and clips, with next to no noise.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import log_ndtr

from hierfl import Federation, fit
from hierfl.experiments import methods

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.attacks import membership
from support.privacy_settings import CANDIDATES, CLIP, SETTINGS, Setting, chosen

from hierfl.data.arrays import channel_constants
from hierfl.data.datasets.registry import DATASETS
from hierfl.data.pool import PooledDataset
from hierfl.inference.noise.accounting import gaussian_ratio
from hierfl.nn.networks.build import architecture

#: an epsilon at which noise is next to nothing
CLIPPED = 1e9
#: of all fits
NETWORK = "mlp:16"
#: clients that are many, and images on which each of them is tested
MANY, TESTED = 1000, 50
#: at which settings were chosen, and of which partition
CHOICE, CHOICE_SEED = 4.0, 100
METRICS = ("pm_accuracy", "gm_accuracy", "pm_nll", "pm_draws_nll", "gm_nll", "pm_ece", "pm_draws_ece")
Row = dict[str, Any]


@cache
def pool_of(data: str) -> PooledDataset:
    """A data set, in $HIERFL_DATA or ./data; pictures of 28 x 28 as means of four pixels, 14 x 14."""
    pool = DATASETS[data].load(Path(os.environ.get("HIERFL_DATA", "data")))
    if pool.x_train.shape[-1] != 28:
        return pool
    train, test = (
        np.rint(x.reshape(*x.shape[:2], 14, 2, 14, 2).mean((3, 5))).astype(np.uint8)
        for x in (pool.x_train, pool.x_test)
    )
    mean, std = channel_constants(train)
    return replace(pool, x_train=train, x_test=test, mean=mean, std=std)


def training_images(pool: PooledDataset, share: float = 1 / 6) -> PooledDataset:
    """Its training images alone, a part of which is the test set: no image of the test set is looked at."""
    order = np.random.default_rng(CHOICE_SEED).permutation(len(pool.y_train))
    cut = round(share * len(order))
    x, y = pool.x_train[order], pool.y_train[order]
    return replace(pool, x_train=x[cut:], y_train=y[cut:], x_test=x[:cut], y_test=y[:cut])


def divided(pool: PooledDataset, clients: int, seed: int) -> Federation:
    """Five classes for each client; where they are many each tests its own model on so many images of its classes."""
    federation = Federation.from_pool(pool, clients, "label-skew:5", validation=0.0, seed=seed)
    if clients < MANY:
        return federation
    random = np.random.default_rng(seed)
    return replace(
        federation, test=[own[torch.from_numpy(random.permutation(len(own))[:TESTED])] for own in federation.test]
    )


def fitted(
    federation: Federation, network: str, method: str, unit: str, epsilon: float, seed: int,
    setting: Setting | None = None,
) -> Row:  # fmt: skip
    """The last round's metrics of one fit.

    Args:
        federation: the data.
        network: of all methods.
        method: its name.
        unit: "none", "site" or "client".
        epsilon: of the fit.
        seed: of the fit.
        setting: of the method; those of the table by default.
    """
    settings, rounds = setting or chosen((method, unit, federation.clients))
    noise = {} if unit == "none" else {"dp": unit, "epsilon": epsilon, "clip": CLIP[unit]}
    masked = unit == "client" and federation.clients == MANY  # as in a study, with more noise than without masks
    start = time.perf_counter()
    run = fit(
        methods.load(method).cls(architecture(network, federation), **settings), federation, seed=seed, progress=False,
        rounds=rounds, evaluate_every=rounds, splits=("test",), masked=masked, **noise,
    )  # fmt: skip
    last = run.last()
    spent = run.noise.epsilon if run.noise is not None else None
    return {"seconds": time.perf_counter() - start, "spent": spent, **{k: last.get(k) for k in METRICS}}


def kept(path: Path, compute: Callable[[], Row]) -> Row:
    """What a file has, or what is computed now and put there."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        row = compute()
        path.with_suffix(".part").write_text(json.dumps(row))
        path.with_suffix(".part").replace(path)
    return dict(json.loads(path.read_text()))


def budgets(unit: str) -> list[tuple[str, float]]:
    """Names and epsilons, most private last."""
    return [("none", 0.0)] if unit == "none" else [("clipped", CLIPPED), ("8", 8.0), ("4", 4.0), ("1", 1.0)]


def table_of_digits(folder: Path) -> Iterator[Row]:
    """Both methods, twenty and two hundred clients, both units."""
    for clients in (20, 200):
        yield from _table(folder, "digits", clients, 3)


def table_of_fashion(folder: Path) -> Iterator[Row]:
    """Both methods, a thousand clients, both units; sums are masked where noise is on them."""
    yield from _table(folder, "fashion-mnist", 1000, 2)


def _table(folder: Path, data: str, clients: int, seeds: int) -> Iterator[Row]:
    """Rows of one data set and number of clients, means over seeds."""
    pool = pool_of(data)
    for method in ("fedavg", "pfedvem"):
        for unit in ("none", "site", "client"):
            for name, epsilon in budgets(unit):
                rows = [
                    kept(
                        folder / f"{method}-{clients}-{unit}-{name}-{seed}.json",
                        lambda w=(NETWORK, method, unit, epsilon, seed): fitted(divided(pool, clients, w[4]), *w),
                    )
                    for seed in range(seeds)
                ]
                yield {"data": data, "clients": clients, "method": method, "unit": unit, "epsilon": name,
                       **_means(rows)}  # fmt: skip


def table_of_settings(folder: Path) -> Iterator[Row]:
    """Candidates at one epsilon, by the training images alone of a partition that is in no other table."""
    for (method, unit, clients), candidates in CANDIDATES.items():
        data = "fashion-mnist" if clients == MANY else "digits"
        for number, setting in enumerate(candidates):
            row = kept(
                folder / f"{method}-{clients}-{unit}-{number}.json",
                lambda w=(NETWORK, method, unit, CHOICE, CHOICE_SEED, setting), d=data, c=clients: fitted(
                    divided(training_images(pool_of(d)), c, CHOICE_SEED), *w
                ),
            )
            yield {"data": data, "clients": clients, "method": method, "unit": unit, "setting": setting.text,
                   **{k: row[k] for k in METRICS}, "seconds": row["seconds"]}  # fmt: skip


def table_of_membership(folder: Path, models: int = 32, rows: int = 600) -> Iterator[Row]:
    """FedAvg's global model of two clients: who was in its data, by likelihood ratios with shadow models."""
    x, y = membership.digits(rows)
    for name, epsilon in [*budgets("none"), *budgets("site")]:
        row = kept(folder / f"fedavg-{rows}-{name}.json", lambda e=epsilon: attacked(x, y, rows, models, e))
        most = {}
        if 0 < epsilon < CLIPPED:
            best = gaussian_auc(gaussian_ratio(epsilon, 1e-5))
            most = {"auc_bound": auc_bound(epsilon, 1e-5), "auc_best": best}
        yield {"method": "fedavg", "rows": rows, "models": models, "unit": "site", "epsilon": name, **row, **most}


def attacked(x: np.ndarray, y: np.ndarray, rows: int, models: int, epsilon: float) -> Row:
    """The attack on a fit with this epsilon; 0 for one without noise, with settings of its own."""
    unit, usual = ("site", (10 + rows // 2) // 2) if epsilon else ("none", 0)
    settings, rounds = SETTINGS["fedavg", unit, 20]
    noise: Row = {"dp": unit, "epsilon": epsilon, "clip": CLIP[unit], "usual_rows": usual} if epsilon else {}
    rounds = rounds if epsilon else 20
    confidence = membership.network(
        "fedavg", x, y, 2, network=NETWORK, settings=settings, rounds=rounds, evaluate_every=rounds, **noise
    )
    member = membership.halves(models, rows)
    scores = np.stack([confidence(which, k) for k, which in enumerate(member)])
    attack = membership.likelihood_ratio(scores, member)
    others = float((scores[~member] > 0).mean())  # of more than one half for the right label
    return {"auc": attack.auc, "auc_se": attack.se, "tpr_at_fpr_1": attack.tpr, "others_right": others}


def auc_bound(epsilon: float, delta: float, cells: int = 20_000) -> float:
    """The largest area under the ROC curve of any attack on a fit with this epsilon and delta.

    A test of level a finds at most min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)) of the members (Kairouz, Oh
    and Viswanath, ICML 2015). The area under that curve bounds that under any ROC curve.
    """
    level = (np.arange(cells) + 0.5) / cells
    power = np.minimum(np.exp(epsilon) * level + delta, 1 - np.exp(-epsilon) * (1 - delta - level))
    return float(np.clip(power, 0, 1).mean())


def gaussian_auc(ratio: float) -> float:
    """The area of the best attack on one Gaussian mechanism: Phi(ratio / sqrt 2); ratio is sensitivity / sd."""
    return float(np.exp(log_ndtr(ratio / np.sqrt(2))))


def _means(rows: list[Row]) -> Row:
    """Over seeds, with standard errors of the mean."""
    means: Row = {"seeds": len(rows)}
    for name in (*METRICS, "spent", "seconds"):
        values = np.array([np.nan if row[name] is None else row[name] for row in rows], float)
        means[name] = float(values.mean())
        if name in METRICS:
            means[f"{name}_se"] = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    return means


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "digits": table_of_digits, "fashion-mnist": table_of_fashion, "membership": table_of_membership,
    "settings": table_of_settings,
}  # fmt: skip


def main(folder: Path, part: str, out: Path) -> None:
    """Writes the table as far as it has come after each row."""
    logging.disable(logging.WARNING)
    rows: list[Row] = []
    for row in PARTS[part](folder / part):
        rows.append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).round(5).to_csv(out, index=False)
        print({k: v for k, v in row.items() if not k.endswith("_se")}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
