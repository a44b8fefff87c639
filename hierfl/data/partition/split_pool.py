"""Cuts one data set into clients: label skew, concept drift, Dirichlet, shards, random slicing, ...

A split is named with its parameter, ``label-skew:5``, and with options after commas, ``dirichlet:0.3,redraw``: draw
again where a client is left with too little; ``keep=0.25``: of a quarter of the data set, drawn at random. Every draw
is keyed by the seed, so a split can be repeated anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import UserError
from ..federation_checks import check_seed
from ..pool import PooledDataset
from .registry import SPLITS, Index
from .spec import parse


@dataclass(frozen=True)
class Partition:
    """Who got what.

    Attributes:
        train, test: for each client int64 indices into the pool, training examples first.
        ids: the clients' names.
        redraws: how often the draw was repeated because a client was left with too few examples.
    """

    train: list[Index]
    test: list[Index]
    ids: list[str]
    redraws: int


def split_pool(pool: PooledDataset, clients: int, name: str, seed: int) -> Partition:
    """Cuts ``pool`` into ``clients`` parts.

    Raises:
        UserError: for a split that is not known or cannot be made of these data.
    """
    check_seed(seed)
    kind, parameter, options = parse(name)
    if "keep" in options:
        kept, places = _share(pool, options.pop("keep"), seed)
        part = _split(kept, clients, kind, parameter, options, name, seed)
        return replace(part, train=[places[i] for i in part.train], test=[places[i] for i in part.test])
    return _split(pool, clients, kind, parameter, options, name, seed)


def _share(pool: PooledDataset, share: float, seed: int) -> tuple[PooledDataset, Index]:
    """A share of a pool's training and test examples, drawn at random, and their positions in the whole of it."""
    rng, places = np.random.default_rng([seed, *b"keep"]), []
    arrays: dict[str, Any] = {}
    for part, offset in (("train", 0), ("test", len(pool.y_train))):
        n = len(getattr(pool, f"y_{part}"))
        index = np.sort(rng.permutation(n)[: max(1, round(share * n))])
        for name in ("x", "y", "fine", "client"):
            whole = getattr(pool, f"{name}_{part}")
            arrays[f"{name}_{part}"] = None if whole is None else whole[index]
        places.append(index + offset)
    return replace(pool, **arrays), np.concatenate(places)


def _split(
    pool: PooledDataset, clients: int, kind: str, parameter: float, options: dict[str, float], name: str, seed: int
) -> Partition:
    how = SPLITS[kind]
    if how.clients is not None:
        ids = how.clients(pool, clients)
        return Partition(*how.make(pool, len(ids), 0.0, np.random.default_rng(seed)), ids, 0)
    if clients < 1:
        raise UserError(f"a federation needs at least one client, not {clients}")
    total = len(pool.y_train) + len(pool.y_test)
    if clients > total:
        raise UserError(f"{clients} clients are more than the data allow: {pool.name} has {total} examples")
    if pool.task != "classification" and how.needs_labels:
        raise UserError(f"split {kind} needs labels, and {pool.name} is a regression; try random-slicing, equal or iid")
    least, attempts = 2 if pool.task == "classification" else 1, 1000 if "redraw" in options else 1
    for attempt in range(attempts):
        rng = np.random.default_rng([seed, *kind.encode(), attempt])
        own = {k: v for k, v in options.items() if k in (*how.options, *how.flags)}
        train, test = how.make(pool, clients, parameter, rng, **own)
        too_small = [j for j in range(clients) if len(train[j]) < least or not len(test[j])]
        if not too_small:
            ids = how.names(pool, train) if how.names else [str(j) for j in range(clients)]
            return Partition(train, test, ids, attempt)
    j = too_small[0]
    if attempts > 1:
        raise UserError(f"split {name}: after {attempts} draws some client of {clients} is still left with too little")
    raise UserError(
        f"split {name} leaves client {j} of {clients} with {len(train[j])} training and {len(test[j])} test examples; "
        f"fewer clients, another seed, or let it redraw: --split {name},redraw"
    )
