"""The language of a method file: plates, flat priors, and what Pyro gives.

Dimensions, fixed once: particles -3, clients -2, data -1; everything further right is ``.to_event``. A parameter
that belongs to clients comes as rows (S, 1, *event); one that everyone shares has no leading dimension, (*event),
until clients train copies of it or differentiate by it: then it, too, comes as rows. So a scalar that is beside a
vector (the scale of ``Normal(w, rho).to_event(1)``) has shape (1,), and one that is beside the data has shape ().
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import torch
from pyro.distributions import ImproperUniform
from pyro.poutine.broadcast_messenger import BroadcastMessenger
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.plate_messenger import PlateMessenger
from torch import Tensor
from torch.distributions import constraints

from ..data.batch import Batch

CLIENTS, DATA = "clients", "data"
sample = pyro.sample
param = pyro.param
#: weighs the log densities inside: around a latent of the model, and around the same one of the guide
scale = pyro.poutine.scale
#: leaves out the log densities inside where it is False
mask = pyro.poutine.mask


class _Whole(PlateMessenger):
    """A plate all of whose rows are here.

    It need not ask the handlers which rows, nor rescale for those that are not, as pyro.plate does at each entry and
    each site: in a hot loop that is a tenth of a step.
    """

    @staticmethod
    def _subsample(name: str, size: int, without: None, rows: Tensor, *where: Any) -> tuple[int, int, Tensor]:
        return size, size, rows

    def _process_message(self, msg: Any) -> None:
        frame = CondIndepStackFrame(self.name, self.dim, self.size, self.counter, self.size)
        msg["cond_indep_stack"] = (frame, *msg["cond_indep_stack"])
        if msg["type"] == "sample":
            shape = getattr(msg["fn"], "batch_shape", ())
            if len(shape) < -self.dim or shape[self.dim] != self.size:  # as it is, most often
                BroadcastMessenger._pyro_sample(msg)


class _Data(_Whole):
    """The data plate: what poutine.mask and poutine.scale would do inside it, in one handler."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(DATA, batch.width, subsample=batch.column_numbers, dim=-1)
        self.mask, self.scale = batch.mask, batch.scale

    def _process_message(self, msg: Any) -> None:
        if self.mask is not None:
            msg["mask"] = self.mask if msg["mask"] is None else msg["mask"] & self.mask
        if self.scale is not None:
            msg["scale"] = self.scale * msg["scale"]
        super()._process_message(msg)


def clients(batch: Batch) -> PlateMessenger:
    """The plate of clients, with exactly the rows present, so that there is no J/S rescaling to undo."""
    return _Whole(CLIENTS, batch.num_clients, subsample=batch.row_numbers, dim=-2)


def data(batch: Batch) -> PlateMessenger:
    """The plate of a client's examples: padding masked, a minibatch weighted up to the client's n_j."""
    return _Data(batch)


class Flat(ImproperUniform):
    """Pyro's, whose log density is on the value's device (Pyro's own is on the CPU)."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Zeros of the batch shape."""
        shape = value.shape[: value.dim() - self.event_dim]
        # NumPy's: the first call of torch's own imports sympy, for half a second.
        return value.new_zeros(()).expand(np.broadcast_shapes(shape, self.batch_shape))


def flat(*shape: int) -> Flat:
    """A flat prior over R^d (or arrays of this shape): log density 0 everywhere."""
    return Flat(constraints.independent(constraints.real, len(shape)), torch.Size(), torch.Size(shape))
