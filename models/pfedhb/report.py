"""Which kinds of difference between clients a fit has found, as numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hierfl.inference.state import State
from hierfl.nn.likelihoods import RESPONSE_SD

#: parts that may enter, in the order in which they are named, and in words
PARTS = {
    "shares": "label shares", "heads": "heads", "features": "features", "confusion": "label confusion",
    "outcome": "outcome", "adapters": "adapters",
}  # fmt: skip
#: what `hierfl ablate` compares, of data with labels: the whole, with populations that are not learned, without a part,
#: and with one more
ABLATIONS: dict[str, dict[str, str]] = {
    "whole": {}, "fixed-prior": {"prior": "fixed"}, "no-shares": {"shares": "off"}, "no-heads": {"heads": "off"},
    "neither": {"shares": "off", "heads": "off"}, "features-too": {"features": "on"},
    "confusion-too": {"confusion": "on"},
}  # fmt: skip


def gain_numbers(shared: Mapping[str, Tensor], parts: tuple[str, ...], judged: int) -> dict[str, float]:
    """What is known of each part: gain_PART in nats, gain_PART_error, entered_PART (0 or 1); and of how many rows.

    Args:
        shared: after the last round.
        parts: that may enter.
        judged: rounds after which that is decided.
    """
    numbers: dict[str, float] = {}
    for k, part in enumerate(parts):
        numbers[f"gain_{part}"] = float(shared["parts.gain"][k])
        numbers[f"gain_{part}_error"] = float(shared["parts.error"][k])
        numbers[f"entered_{part}"] = float(shared[f"parts.{part}"])
    return {**numbers, "gain_rows": float(shared["parts.rows"]), "gain_rounds": float(judged)} if parts else {}


def part_lines(summary: Mapping[str, Any]) -> list[str]:
    """What differs between clients, in one line; nothing where no part may enter.

    Args:
        summary: of a run, with :func:`gain_numbers` in it.
    """
    words_of_parts = []
    for part, words in PARTS.items():
        if (gain := summary.get(f"gain_{part}")) is None:
            continue
        error, entered = summary.get(f"gain_{part}_error"), summary.get(f"entered_{part}")
        error_words = "" if error is None else f" (+- {error:.0f})"
        words_of_parts.append(f"{words}: {round(gain)} nats{error_words}{', in the model' if entered else ''}")
    if not words_of_parts:
        return []
    if summary["rounds"] < summary["gain_rounds"]:
        words_of_parts.append(f"not decided before round {summary['gain_rounds']:.0f}")
    if not any(summary.get(f"entered_{part}") for part in PARTS):
        words_of_parts.append("none is in the model")
    return [f"what differs between clients, by {summary['gain_rows']:.0f} held rows: {'; '.join(words_of_parts)}"]


def client_numbers(method: Any, values: State) -> State:
    """What a run's table of clients has of each: its classes and label skew, or its shift and standard deviation.

    Args:
        method: PFedHB.
        values: of all clients, and shared ones.
    """
    if not method.labels:
        units = getattr(method, "response_units", None)
        sd = values[RESPONSE_SD].flatten() if method.network.learned else method.network.noise
        return method.outcome.summary(values, sd, units.sd if units else 1.0) if method.outcome else {}
    counts, population = values["class_counts"].squeeze(1), method.shares.population(values)
    given = method.shares.population(values, counts)
    confusion = {"confused": values["confused"].flatten()} if method.confusion else {}
    return {
        "classes": (given.sizes_given * given.sizes).sum(-1),
        "label_skew": torch.special.xlogy(given.mean, given.mean / population.pooled).sum(-1),
        **confusion,
    }
