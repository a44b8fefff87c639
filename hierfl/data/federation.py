"""Data of J clients: one pool of tensors on the device, and ragged index sets that say whose is what.

Nothing is copied per client: two hundred clients cost one data set. Images stay uint8 until they are batched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..plurals import counted
from ..rng import client_keys
from .batch import Batch, masked_zeros
from .by_class import ByClass
from .federation_checks import check_clients, check_sizes
from .federation_makers import FederationMakers
from .fingerprint import fingerprint
from .index_sets import IndexSets
from .model_inputs import model_inputs
from .partition.hold_out import hold_out
from .partition.split_pool import split_pool
from .pool import PooledDataset, Task
from .response_units import ResponseUnits

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Federation(FederationMakers):
    """J clients' data in one pool.

    Attributes:
        x: the pool's inputs, (N, *event); uint8 images or floats.
        y: the pool's targets, (N,).
        train, validation, test: for each client, int64 indices into the pool (sets may overlap between clients).
        global_test: indices of the whole test set, on which a global model is evaluated.
        ids: one name per client. Random numbers are keyed by it, so it travels with the client.
        task: "classification" or "regression".
        classes: number of labels; 0 for regression.
        mean, std: how inputs are standardised when they are batched; None for as they are.
        about: where this came from (data, split, redraws, ...), for config and summary.
        dtype: of the inputs in a batch.
        outline: whether it is one without clients: what is known of data that are elsewhere.
        response_units: mean and sd of a regression's training responses; None where they are not known.
        standard_response: whether a batch's responses are standardised by them.
        weights: for how many training rows each of the pool's examples stands, (N,) in float64; None for one each.
    """

    x: Tensor
    y: Tensor
    train: Sequence[Tensor]
    validation: Sequence[Tensor]
    test: Sequence[Tensor]
    global_test: Tensor
    ids: Sequence[str]
    task: Task
    classes: int = 0
    mean: Tensor | None = None
    std: Tensor | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    outline: bool = False
    response_units: ResponseUnits | None = None
    standard_response: bool = False
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        check_clients(self.ids, outline=self.outline)
        for split in SPLITS:
            if not isinstance(getattr(self, split), IndexSets):
                object.__setattr__(self, split, IndexSets(getattr(self, split)))
        check_sizes(self.ids, self.sizes(), self.task)

    @classmethod
    def from_pool(
        cls, pool: PooledDataset, clients: int, split: str, *, validation: float = 0.1, seed: int = 0,
        validation_of: str = "classes",
    ) -> Federation:  # fmt: skip
        """Splits a pool (see :mod:`hierfl.data.datasets.registry`) among J clients.

        Args:
            pool: the data set.
            clients: J; for ``split="natural"`` the number the data say, or 0.
            split: a name of :data:`hierfl.data.partition.registry.SPLITS` with its parameter, such as "label-skew:5".
            validation: fraction of each class that is held out where a client has at least ten of it.
            seed: of the split and of what is held out.
            validation_of: "clients": that fraction of every client's rows instead, whatever their classes, one at least
                of clients that have three, so that small clients are judged, too.

        Raises:
            UserError: where the split cannot be made.
        """
        parts = split_pool(pool, clients, split, seed)
        y = np.concatenate([pool.y_train, pool.y_test])
        train, held_out = hold_out(parts.train, parts.ids, y, validation, seed, pool.task, validation_of)
        regression = pool.task == "regression"
        units = ResponseUnits.from_responses(pool.y_train, pool.train_weights) if regression else None
        return cls(
            x=torch.as_tensor(np.concatenate([pool.x_train, pool.x_test])), y=torch.as_tensor(y),
            train=[torch.as_tensor(i) for i in train], test=[torch.as_tensor(i) for i in parts.test],
            validation=[torch.as_tensor(i) for i in held_out], classes=pool.classes, ids=parts.ids, task=pool.task,
            global_test=torch.as_tensor(np.unique(np.concatenate(parts.test))),
            mean=None if pool.mean is None else torch.as_tensor(pool.mean),
            std=None if pool.std is None else torch.as_tensor(pool.std),
            response_units=units,
            about={"data": pool.name, "split": split, "redraws": parts.redraws, "data_digest": pool.digest(),
                   "origin": pool.origin},
            weights=None if pool.weights is None else torch.as_tensor(pool.weights),
        )  # fmt: skip

    def remembering(self, kept: Mapping[str, Any]) -> Federation:
        """The same with more that is remembered of where it came from."""
        return replace(self, about={**self.about, **kept})

    def __repr__(self) -> str:
        """Sizes, not data."""
        n, name, shape = self.sizes() or [0], self.about.get("data", "data"), tuple(self.event_shape)
        what = f"{counted(self.clients, 'client')}, {self.task}, {min(n)} to {max(n)} training examples, inputs {shape}"
        return f"Federation({name}: {what})"

    @property
    def clients(self) -> int:
        """J."""
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        """The device that holds the pool."""
        return self.x.device

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one input."""
        return self.x.shape[1:]

    @cached_property
    def extent(self) -> tuple[float, float]:
        """The least and the largest number of the raw inputs; both 0 of an outline."""
        return (float(self.x.min()), float(self.x.max())) if self.x.numel() else (0.0, 0.0)

    def sizes(self, split: str = "train") -> Sequence[int]:
        """n_j for each client; not to be changed."""
        return self.indices(split).sizes

    @cached_property
    def amounts(self) -> Sequence[float]:
        """n_j as a fit counts it: training rows, or the sum of their weights in the federation's dtype."""
        if (weights := self.weights) is None:
            return self.sizes()
        return [float(weights[index].sum().to(self.dtype)) for index in self.train]

    @property
    def label_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers and of probabilities; none of a regression."""
        return [str(label) for label in self.about.get("labels") or range(self.classes)]

    @cached_property
    def keys(self) -> Tensor:
        """What keys the clients' random numbers, (J,); on the CPU. See :func:`hierfl.rng.client_keys`."""
        return client_keys(self.ids)

    @cached_property
    def by_class(self) -> ByClass:
        """The clients' training examples, by class."""
        return ByClass([self.y[index].cpu().numpy() for index in self.train], self.classes)

    def indices(self, split: str) -> IndexSets:
        """The clients' index sets of "train", "validation" or "test"."""
        by_split: Any = {"train": self.train, "validation": self.validation, "test": self.test}
        return cast(IndexSets, by_split[split])

    def batch(self, rows: Sequence[int], split: str = "train") -> Batch:
        """All examples of some clients, padded to the longest; clients without any are padded whole."""
        sets = self.indices(split)
        return replace(self.gather(*sets.padded(rows), rows), counts=[sets.sizes[j] for j in rows])

    def gather(self, index: Tensor, mask: Tensor | None, rows: Sequence[int]) -> Batch:
        """The batch that holds the pool's examples ``index`` (S, n), of the clients ``rows``."""
        n = torch.tensor([self.sizes()[j] for j in rows], dtype=self.dtype, device=self.device)
        return Batch(*self.examples(index), mask, n)

    def examples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised inputs and targets of the pool's examples ``index``, of any shape."""
        flat = index.flatten()  # index_select copies whole rows; advanced indexing of bytes is eight times slower
        x, y = (pool.index_select(0, flat).unflatten(0, index.shape) for pool in (self.x, self.y))
        return self.inputs(x), self.targets(y)

    def targets(self, y: Tensor) -> Tensor:
        """Raw targets as the model sees them: labels as they are, responses in the federation's dtype and units."""
        own = y if self.task == "classification" else y.to(self.dtype)
        return own if (units := self.units) is None else units.standard(y, self.dtype)

    @property
    def units(self) -> ResponseUnits | None:
        """Those by which a batch's responses are standardised; None where they are as they are."""
        return self.response_units if self.standard_response else None

    def template(self, rows: int = 1, width: int = 1) -> Batch:
        """Rows of masked zeros: enough for a model to be run where there are no data."""
        y = self.targets(torch.zeros((rows, width), dtype=self.y.dtype, device=self.device))
        return masked_zeros(y, self.event_shape, self.dtype, ids=self.x.dtype == torch.int64)

    def inputs(self, x: Tensor) -> Tensor:
        """Raw inputs (..., *event) as the model sees them: floats, standardised; ids in int64."""
        return x.long() if self.x.dtype == torch.int64 else model_inputs(x, self.mean, self.std, self.dtype)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Federation:
        """The same federation on another device, or batching in another floating-point type."""
        device, dtype = torch.device(device or self.device), dtype or self.dtype
        if (device, dtype) == (self.device, self.dtype):
            return self
        names = ("x", "y", "global_test", "mean", "std", "weights", *SPLITS)
        moved: dict[str, Any] = {k: None if (tensor := getattr(self, k)) is None else tensor.to(device) for k in names}
        made = replace(self, **moved, dtype=dtype)
        # Labels are read while they are here: later the device would be waited for.
        if self.task == "classification" and not self.outline:
            made.__dict__["by_class"] = self.by_class
        return made

    def select(self, rows: Sequence[int]) -> Federation:
        """The federation of some of the clients, in the order given."""
        splits: dict[str, Any] = {split: self.indices(split).select(rows) for split in SPLITS}
        return replace(self, **splits, ids=[self.ids[j] for j in rows])

    def digest(self) -> str:
        """A fingerprint of data and split: two federations with the same digest hold the same examples."""
        more = () if self.weights is None else (self.weights,)
        return fingerprint((self.x, self.y, *self.train, *self.validation, *self.test, *more))
