"""Methods with one shared model, and a personal offset of it that is fitted in the end: what they share.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w + offset_j)))   offset_j a point, 0 while w is trained

The offset is fitted from 0 whenever the client's model is evaluated, stopped early, and never sent.
"""

import torch

from hierfl.federation import Batch
from hierfl.inference.method import Start, State
from hierfl.plates import clients, data, flat, param, sample

from ._whole_network import WholeNetwork


class FineTuned(WholeNetwork):
    """rho -> 0: every w_j is w, but for an offset that is fitted where the model is evaluated, and never sent."""

    state = "heard"  # a client that does not report has nothing to remember
    adapts = True
    averages_norms = True

    def personal(self, start: Start) -> State:
        return {"offset": torch.zeros_like(self.begin(start))}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net(w + param("offset"), batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def newcomer(self, personal: State, initial: State) -> State:
        return initial
