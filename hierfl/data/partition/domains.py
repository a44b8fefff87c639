"""Feature skew: every client has examples of one domain."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ...plurals import counted
from ..pool import PooledDataset
from .cells import assemble, labels_of, slices_own
from .registry import Index, Parts, split


def _domains_of(pool: PooledDataset) -> list[str]:
    """The domains that the data name, in the order in which they come."""
    if pool.client_train is None or pool.client_test is None:
        raise UserError(f"{pool.name} has no domains (client_train, client_test); digit-three and digit-five have")
    return list(dict.fromkeys(pool.client_train.astype(str).tolist()))


def _domain_names(pool: PooledDataset, train: list[Index]) -> list[str]:
    """Clients are called by their domain, and numbered where any of them share one."""
    assert pool.client_train is not None
    domains = [str(pool.client_train[index[0]]) for index in train]
    if len(set(domains)) == len(domains):
        return domains
    return [f"{name}-{domains[:j].count(name)}" for j, name in enumerate(domains)]


@split("domains", "N examples of one domain each, all domains equally often", "N", names=_domain_names)
def domains(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """N training examples of one domain each, drawn at random; tested on all of its test examples."""
    domains, n = _domains_of(pool), int(parameter)
    if clients % len(domains):
        raise UserError(f"{pool.name} has {len(domains)} domains: a multiple of as many clients, not {clients}")
    assert pool.client_train is not None
    assert pool.client_test is not None
    owner, owner_test, offset = pool.client_train.astype(str), pool.client_test.astype(str), len(pool.y_train)
    train: list[Index] = [np.empty(0, dtype=np.int64)] * clients
    test = list(train)
    for d, name in enumerate(domains):
        index, mine = rng.permutation(np.flatnonzero(owner == name)), range(d, clients, len(domains))
        if len(mine) * n > len(index):
            raise UserError(
                f"domain {name} has {counted(len(index), 'training example')}, fewer than {len(mine)} times {n}"
            )
        for k, j in enumerate(mine):
            train[j] = np.sort(index[k * n : (k + 1) * n])
            test[j] = np.flatnonzero(owner_test == name) + offset
    return train, test


@split("domain-skew", "a random domain each, C random labels of it, sizes cut at random", "C", names=_domain_names)
def domain_skew(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """A random domain, then C random labels of it; sizes cut at random (pFedVEM's Table 7)."""
    domains, labels, c = _domains_of(pool), labels_of(pool), int(parameter)
    if c > len(labels):
        raise UserError(f"{c} labels per client are more than the {len(labels)} there are")
    assert pool.client_train is not None
    assert pool.client_test is not None
    number = {name: d for d, name in enumerate(domains)}

    def cells(owner: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([number.get(name, -1) for name in owner.astype(str)]) * (int(labels[-1]) + 1) + y

    drawn = rng.integers(len(domains), size=clients)
    assigned = [
        [int(d * (int(labels[-1]) + 1) + k) for k in rng.choice(labels, c, replace=False)] for d in drawn.tolist()
    ]
    return assemble(
        pool, cells(pool.client_train, pool.y_train), cells(pool.client_test, pool.y_test), assigned, slices_own, rng
    )
