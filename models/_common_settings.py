"""Settings that many methods have, with one meaning each."""

from __future__ import annotations

from typing import Any

from hierfl.inference.method.settings import setting


def client_momentum(default: float = 0.9) -> Any:
    """``momentum`` of the clients' local steps."""
    return setting(default, "momentum of the clients' steps; every round begins without any", at_least=0)


def server_step() -> Any:
    """``server_lr`` of a server that takes a mean: a share of the way there, so at most 1."""
    meaning = "how far the server moves to the clients' mean: 1 replaces what it had, 0.5 goes half way"
    return setting(1.0, meaning, above=0, at_most=1)


def server_momentum(what: str = "the server's steps") -> Any:
    """``server_momentum`` of a server that takes a mean (FedAvgM; Hsu, Qi and Brown, 2019)."""
    meaning = f"momentum of {what} from round to round (FedAvgM); 0: none"
    return setting(0.0, meaning, at_least=0, below=1, newer=True)


def lr_decay(what: str = "lr") -> Any:
    """``lr_decay``: a schedule of the clients' step size over rounds, which needs no number of rounds."""
    meaning = f"factor of {what} from each round to the next; 1: the same in all rounds"
    return setting(1.0, meaning, above=0, at_most=1, newer=True)
