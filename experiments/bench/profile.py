"""Profile of the time of a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from hierfl.data.chunk_data import ChunkData
from hierfl.inference.local import trainer
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.local.optimizers import SGD
from hierfl.inference.run.fit import Fit
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.likelihoods import Softmax
from hierfl.rng import ClientNoise

from .clock import seconds, wait_for

PARTS: dict[str, tuple[Any, str]] = {
    "gather": (ChunkData, "at"),
    "noise": (ClientNoise, "normal"),
    "network": (Network, "apply"),
    "head": (LinearHead, "__call__"),
    "likelihood": (Softmax, "log_prob"),
    "backward": (Tensor, "backward"),
    "optimiser": (SGD, "step"),
    "Pyro, KL and bookkeeping of the ELBO": (trainer, "elbo"),
    "posteriors of heads": (GaussianHead, "run"),
}


def parts(fit: Fit, device: str) -> dict[str, Any]:
    """Seconds of a round by part, what is inside one part and a part itself not counted twice; and per step."""
    spent = dict.fromkeys(PARTS, 0.0)
    calls = dict.fromkeys(PARTS, 0)
    inner = [0.0]  # seconds of the parts inside each part that is open

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        wait_for(device)
        start = time.perf_counter()
        inner.append(0.0)
        yield
        wait_for(device)
        taken = time.perf_counter() - start
        spent[name] += taken - inner.pop()
        inner[-1] += taken
        calls[name] += 1

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with timed(name):
                return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            stack.enter_context(_replaced(owner, attribute, wrapped(name, getattr(owner, attribute))))
        total = seconds(fit.step, device)
    spent["everything else"] = total - sum(spent.values())
    return {"seconds": spent, "total_seconds": total, "steps": calls["optimiser"], "calls": calls}


@contextmanager
def _replaced(owner: Any, attribute: str, other: Any) -> Iterator[None]:
    """Another attribute of a class or module for a while."""
    own = vars(owner)[attribute]
    setattr(owner, attribute, other)
    try:
        yield
    finally:
        setattr(owner, attribute, own)
