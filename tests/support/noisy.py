"""A tiny method whose messages have noise: each class's mean input, from clipped sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hierfl import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Form, values_form
from hierfl.inference.noise import Mechanism
from hierfl.inference.options import Options
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.models import FedAvg


class ClippedSums:
    """Sums of rows of norm at most ``clip``, with noise where the fit has some."""

    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        return values_form(old)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        sums = {name: [] for name in names}
        for row, j in enumerate(chunk.clients):
            x, _ = chunk.federation.examples(chunk.federation.train[j][None])
            x = x[0].flatten(1)
            clip = chunk.privacy.clip if chunk.privacy else 1.0
            whole = (x * (clip / x.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum()
            for name in names:
                value = whole.expand(chunk.shared[name].shape).clone() / chunk.shared[name].numel() ** 0.5
                if chunk.privacy:
                    value = chunk.privacy.noisy("sums", value, clip * 2, chunk.ids[row], chunk.round, name)
                sums[name].append(value)
        return {name: torch.stack(values) for name, values in sums.items()}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        return {name: old[name] + 1e-3 * total[name] / context.num_clients for name in old}


class NoisySums(FedAvg):
    """See the module."""

    name = "noisy-sums"

    def local(self) -> list:
        return []

    def exchange(self) -> dict:
        return {"w": ClippedSums()}

    def mechanisms(self, options: Options) -> Sequence[Mechanism]:
        if options.dp != "site":
            raise UserError("noisy-sums: noise is added inside each site alone (dp='site')")
        return [Mechanism("sums", 1, options.rounds, most=1)]
