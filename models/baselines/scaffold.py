"""SCAFFOLD: local steps whose drift is corrected. Karimireddy et al., ICML 2020, Alg. 1, option II.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))

A round, at every client that takes part: K_j steps of length eta on a copy w_j of w along g - c_j + c, with c_j a
control variate, the client's mean gradient, and c the mean of all c_j. Then

    c_j <- c_j - c + (w - w_j) / (K_j eta)

It sends w_j and the change of c_j; the server moves by eta_g to the plain mean of w_j, and adds the changes to c, by J.
Steps are plain descent, or else c_j would be no mean gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.devices import send
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import ControlVariate
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.server.rules.running import DeltaSum
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, flat, sample

from ._whole_network import WholeNetwork


class Scaffold(WholeNetwork):
    """Local steps along g - c_j + c (option II)."""

    about = About(
        name="scaffold",
        what="corrected drift",
        paper="Karimireddy et al., ICML 2020",
        family="rho -> 0, control variates",
        stays="c_j",
        sent="all, change of c_j",
        message_size=2.0,
        order=330,
    )
    averages_norms = True

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """The paper: a server's step of 1."""

        server_lr: float = setting(
            1.0, "eta_g, how far the server moves to the clients' mean: 1 replaces what it had", above=0
        )

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), "c": torch.zeros_like(self.begin(start))}

    def personal(self, start: InitialWeights) -> State:
        return {"c_j": torch.zeros_like(self.begin(start))}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net(w, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Nothing of the model is personal."""

    def local(self) -> list[LocalStep]:
        s = self.settings
        corrected = ControlVariate("w", plus="c", minus="c_j")
        descent = SVI(["w", "base"], s.epochs, sgd(s.lr), s.batch, per="example", transform=corrected)
        return [descent, Add("c_j", self.change)]

    def change(self, chunk: ClientChunk) -> Tensor:
        """c_j^+ - c_j = (w - w_j) / (K_j eta) - c, after K_j steps to w_j: (S, d)."""
        s = self.settings
        taken = [s.epochs * -(-n // s.batch) for n in chunk.sizes]
        distance = send(taken, chunk.n.device, chunk.n.dtype).clamp_min(1)[:, None] * s.lr
        return (chunk.shared["w"] - chunk.values["w"].squeeze(1)) / distance - chunk.shared["c"]

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": UniformMean(server_lr=self.settings.server_lr), "c": DeltaSum(self.change), "base": UniformMean()}

    def schedule(self) -> Schedule:
        # c must stay the mean of the c_j
        return Schedule(absent="freeze", commit="if-used", new_client_steps=[])


@dataclass(frozen=True)
class Add:
    """A local step that adds to a personal value what is sent of it.

    Args:
        name: the value.
        change: of each row, (S, *shape).
    """

    name: str
    change: Callable[[ClientChunk], Tensor]

    @property
    def trains(self) -> tuple[str, ...]:
        """The value."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Adds."""
        return chunk.put({self.name: chunk.values[self.name] + self.change(chunk).unsqueeze(1)})
