"""Methods with one shared model, and a personal offset of it that is fitted in the end: what they share.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w + offset_j)))   offset_j a point, 0 while w is trained

The offset is fitted from 0 whenever the client's model is evaluated, stopped early, and never sent.
"""

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from ._whole_network import WholeNetwork


def with_offset(net: Architecture, w: Tensor, offset: Tensor, x: Tensor) -> Tensor:
    """Outputs of a network under weights (..., d) that are moved by an offset, of all of them or of the head's."""
    return net(w + offset, x) if offset.shape[-1] == net.d else net(w, x, offset)


class FineTuned(WholeNetwork):
    """rho -> 0: every w_j is w, but for an offset that is fitted where the model is evaluated, and never sent."""

    averages_norms = True

    def final_steps(self) -> list[LocalStep]:
        """The fit to a client's own data, which it forgets again."""
        raise NotImplementedError

    def schedule(self) -> Schedule:
        # a client that does not report has nothing to remember
        return Schedule(absent="freeze", commit="if-used", final_steps=self.final_steps(), final_when="evaluation")

    def personal(self, start: InitialWeights) -> State:
        return {"offset": torch.zeros_like(self.begin(start))}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net(w + param("offset"), batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def new_client_terms(self, personal: State) -> State:
        return {}
