"""Random parts given the rest: every example once, keyed by client."""

from __future__ import annotations

import torch
from support.federations import blobs
from support.methods import chunk_of

from hierfl.inference.clients.held_out import held_out
from hierfl.inference.objective.elbo import elbo
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


def test_every_example_is_in_one_of_the_parts() -> None:
    fed = blobs([11, 2, 6])
    chunk = chunk_of(FedAvg(architecture("linear", fed)), fed)
    whole, seen = chunk.batch(), []
    for step in range(2):
        batch = held_out(chunk, whole, 0.4, "phase", step)
        assert batch.given is not None
        rest = batch.given.examples
        assert (list(batch.counts), list(rest.counts)) == ([4, 2, 1], [7, 4, 1])  # type: ignore[arg-type]
        for row, n in enumerate(chunk.sizes):
            b = batch.counts[row]  # type: ignore[index]
            assert float(batch.scale[row]) == n / b  # type: ignore[index]
            x = torch.cat([batch.x[row, :b], rest.x[row, : n - b]])
            y = torch.cat([batch.y[row, :b], rest.y[row, : n - b]])
            order = x[:, 0].argsort()
            whole_order = whole.x[row, :n, 0].argsort()
            assert torch.equal(x[order], whole.x[row, :n][whole_order])
            assert torch.equal(y[order], whole.y[row, :n][whole_order])
            alone = chunk.take([row])
            again = held_out(alone, alone.batch(), 0.4, "phase", step)
            assert torch.equal(again.x[0, :b], batch.x[row, :b])
        seen.append(batch.x[0])
    assert not torch.equal(*seen)


def test_a_part_weighs_as_much_as_all() -> None:
    fed = blobs([8, 3])
    method = FedAvg(architecture("linear", fed))
    chunk = chunk_of(method, fed)
    part = held_out(chunk, chunk.batch(), 1.0, 0, 0)
    assert part.given is not None
    assert list(part.given.examples.counts) == [0, 0]  # type: ignore[arg-type]
    torch.testing.assert_close(
        elbo(method, part, chunk.view, None), elbo(method, chunk.batch(), chunk.view, None), rtol=1e-12, atol=0
    )
