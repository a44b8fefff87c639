"""FedPop's synthetic regression, as a data set that is made from the run's seed."""

from __future__ import annotations

from ..pool import PooledDataset
from .registry import DATASETS, DataSet


def made(seed: int) -> PooledDataset:
    """See :func:`hierfl.data.synthetic.synthetic_pool`."""
    from ..synthetic import synthetic_pool  # imports torch, for which a list of the data sets does not wait

    return synthetic_pool(seed)[0]


DATASETS["fedpop-synthetic"] = DataSet(
    "FedPop's regression: 100 clients, 5 or 10 rows each, made from the run's seed", lambda root: made(0),
    clients=100, split="natural", rounds=100, participation=1.0, evaluate_every=10, network="projection:2",
    noise=0.1**0.5, chunk=100, made=made,
)  # fmt: skip
