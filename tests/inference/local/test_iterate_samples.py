"""Samples of a descent's passes."""

from __future__ import annotations

import pytest
import torch
from support.baselines import rows_of, slope_at
from support.methods import order_of
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.gradient_transforms import MetaGradient
from hierfl.inference.local.iterate_samples import IterateSamples
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.models import FedPA
from hierfl.nn.architecture import Architecture


def last(samples: Tensor, chunk: ClientChunk) -> Tensor:
    """Leaves the rows as they are."""
    return chunk.values["w"].squeeze(1)


@pytest.mark.parametrize("keep", ["mean", "last"])
@pytest.mark.parametrize("burn", [0, 2])
def test_a_sample_is_of_the_rows_own_pass(keep: str, burn: int, small: Federation, net: Architecture) -> None:
    """Rows have 1 to 6 steps in a pass."""
    chunk, seen = rows_of(FedPA(net), small), []

    def use(samples: Tensor, chunk: ClientChunk) -> Tensor:
        seen.append(samples)
        return last(samples, chunk)

    descent = SVI(["w"], 3, sgd(0.05, 0.5), 4, per="example")
    after = IterateSamples(descent, "w", burn, use, keep).run(chunk, 0).values["w"]  # type: ignore[arg-type]
    assert torch.equal(after, descent.run(chunk, 0).values["w"])  # what watches changes nothing
    (samples,) = seen
    assert samples.shape == (7, 3 - burn, net.d)
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        w, v = chunk.shared["w"], torch.zeros(net.d, dtype=torch.float64)
        for epoch in range(3):
            passed = []
            for batch in order_of(chunk, row, 0, epoch).split(4):
                v = 0.5 * v + slope_at(net, w, x, y, batch)
                w = w - 0.05 * v
                passed.append(w)
            if epoch >= burn:
                expected = torch.stack(passed).mean(0) if keep == "mean" else w
                torch.testing.assert_close(samples[row, epoch - burn], expected, rtol=1e-9, atol=1e-11)


def test_whole_batches_are_watched_too(small: Federation, net: Architecture) -> None:
    """SVI without a batch size: every row after every step, whatever it is padded beside."""
    chunk, seen = rows_of(FedPA(net), small), {}

    def watch(part: ClientChunk, first: int, number: int) -> None:
        for k, j in enumerate(part.clients):
            assert chunk.clients[first + k] == j
            seen[j, number] = part.values["w"][k].clone()

    after = SVI(["w"], 3, sgd(0.05), per="example", watch=watch).run(chunk, 0).values["w"]
    assert len(seen) == 21
    for row, j in enumerate(chunk.clients):
        assert torch.equal(seen[j, 2], after[row])
        assert not torch.equal(seen[j, 1], after[row])


def test_what_is_refused() -> None:
    descent = SVI(["w"], 3, sgd(0.05), 4)
    with pytest.raises(UserError, match="burn=3 of epochs=3"):
        IterateSamples(descent, "w", 3, last)
    with pytest.raises(UserError, match="sample of a pass"):
        IterateSamples(descent, "w", 1, last, "first")  # type: ignore[arg-type]
    others = SVI(["w"], 3, sgd(0.05)), SVI(["w"], 3, sgd(0.05), 4, steps=5)
    for other in (*others, SVI(["w"], 3, sgd(0.05), 4, steps=3, transform=MetaGradient(0.1, 0.1))):
        with pytest.raises(UserError, match="counts passes of single minibatches"):
            IterateSamples(other, "w", 1, last)
