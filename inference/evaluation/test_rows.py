"""Test rows with other label shares than the clients' own: the protocols under which a fit is evaluated.

    own        a client's own test rows
    balanced   equally many of each class, for every client
    shifted    the label counts of another client's test rows: a client whose shares have changed

The rows come from the client's own test rows where every client has every class among them, elsewhere from all clients'
together, a sample of what the client would see. No row is taken twice where there are enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown

PROTOCOLS = ("own", "balanced", "shifted")
#: rows of a client, at most, of which labels are chosen
MAX_ROWS = 2000


def check_protocols(federation: Federation, protocols: tuple[str, ...]) -> None:
    """Refuses what cannot be evaluated.

    Raises:
        UserError: for an unknown protocol, a regression, or where there are no test rows, or those of one client.
    """
    for name in protocols:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
    if not protocols or len(set(protocols)) < len(protocols):
        raise UserError(f"protocols are some of {', '.join(PROTOCOLS)}, each once")
    if federation.task != "classification":
        raise UserError("protocols are of labels, and this is a regression")
    if not any(federation.sizes("test")):
        raise UserError("protocols are of test rows, and there are none")
    if "shifted" in protocols and sum(n > 0 for n in federation.sizes("test")) < 2:
        raise UserError("shares shift to those of another client, and there is one client with test rows")


def under_protocol(federation: Federation, protocol: str, seed: int) -> Federation:
    """The same federation with a protocol's test rows; clients without test rows stay so.

    Args:
        federation: with test rows, labels as targets.
        protocol: "own", "balanced" or "shifted".
        seed: of which rows, and whose shares.
    """
    if protocol == "own":
        return federation
    y = federation.y.cpu().numpy()
    own = [index.cpu().numpy() for index in federation.test]
    counts = np.array([np.bincount(y[index], minlength=federation.classes) for index in own])
    tested = np.flatnonzero(counts.sum(1))
    everyone = np.unique(np.concatenate(own))
    complete = bool((counts[tested] > 0).all())
    wanted = np.zeros_like(counts)
    if protocol == "balanced":
        label_counts = np.bincount(y[everyone], minlength=federation.classes)
        source = counts[tested] if complete else label_counts[None]
        number = min(int(source[source > 0].min()), max(1, MAX_ROWS // int((label_counts > 0).sum())))
        wanted[tested] = number * (label_counts > 0)
    else:
        order = np.random.default_rng([seed, *b"shifted"]).permutation(tested)
        wanted[order] = fewer(counts[np.roll(order, 1)])
    test = list(own)
    for j in tested:
        generator = np.random.default_rng([seed, *protocol.encode(), int(federation.keys[j])])
        test[j] = with_labels(own[j] if complete else everyone, y, wanted[j], generator)
    return replace(federation, test=[torch.as_tensor(index, device=federation.device) for index in test])


def fewer(counts: np.ndarray) -> np.ndarray:
    """Label counts (J, C), of clients with more than :data:`MAX_ROWS` rows reduced to about as many."""
    share = np.minimum(1.0, MAX_ROWS / counts.sum(1, keepdims=True))
    reduced: np.ndarray = np.ceil(counts * share).astype(counts.dtype)
    return reduced


def with_labels(index: np.ndarray, y: np.ndarray, wanted: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """So many rows of each class (C,), from those of ``index``; again and again where there are too few."""
    chosen = []
    for label, number in enumerate(wanted):
        rows = index[y[index] == label]
        if number:
            chosen.append(generator.choice(rows, number, replace=bool(number > len(rows))))
    return np.sort(np.concatenate(chosen))


def label_counts(federation: Federation, split: str = "train") -> Tensor:
    """How many examples of each class clients have, (J, C); float64."""
    labels = [federation.y[index] for index in federation.indices(split)]
    return torch.stack([torch.bincount(y, minlength=federation.classes) for y in labels]).double()
