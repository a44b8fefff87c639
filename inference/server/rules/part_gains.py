"""Which parts of a model enter, by what they gain on rows that nothing was trained on: forward selection from sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, not_negative
from ...state import State
from .base import AggregationContext

#: nats that a part gains at least: log 20, which one likelihood ratio at one look exceeds at most once in twenty where
#: the part is not there
MIN_GAIN_NATS = math.log(20)
#: the normal's quantile of the test over clients, of which Student's follows
NORMAL = 1.6448536269514722
#: nats of one client at most, either way
MAX_GAIN_NATS = 1e4


@dataclass(frozen=True)
class PartGains:
    """Forward selection of parts, one a phase, by a paired gain on held rows.

    The shared values are NAME.PART (1,), 0 or 1, whether it has entered; NAME.gain (K,) and NAME.error (K,), what each
    part gains over those that have entered before it, in nats over all clients, and the standard error of that;
    NAME.rows (1,), on how many rows; and NAME.null (1,), in which of G versions those that have entered do best, beside
    which the next round's gains are taken. Rounds up to ``until`` are K + 1 phases. The first is half of them, so
    that populations are learned; the others are equally long. In each the parts that have not entered are judged given
    those that have; at its end the one that gains most enters, where it passes:

    - its gain is above log 20. It is the logarithm of a ratio of predictive densities: where the model without the part
      is right the ratio's mean is at most one, and it exceeds 20 at most once in twenty (Markov);
    - the mean over clients, who are independent, of tanh(d / 2) is above zero by Student's t at 5 % of one side, with d
      (K,) a client's differences of log densities. It is a concave function of the ratio exp(d), and so not above zero
      on average where that is at most one. It is bounded: no client decides alone.

    Both are of one part at one look. Of several parts, looks at the same rows, and the version that these rows have
    chosen they bound nothing together: how often a part enters wrongly is known from simulations.

    A client sends d, d^2, tanh(d / 2), its square, its log density under each version less that under the first, on how
    many rows, and whether there were any: 4 K + G + 2 numbers. After ``until`` it sends zeros.
    Where only some clients report, what they say replaces as large a part of what was known.

    Args:
        name: NAME.
        parts: in the order of ``gains``.
        until: the round at whose end all is decided.
        nulls: G.
        gains: from rows to d, (S, K), to the densities under each version, (S, G), and to on how many rows, (S,).
    """

    name: str
    parts: Sequence[str]
    until: int
    nulls: int
    gains: Callable[[ClientChunk], tuple[Tensor, Tensor, Tensor]]
    comparable: ClassVar[bool] = False
    no_noise: ClassVar[str] = "whether a part enters is decided by sums that noise would hide: on or off, not auto"
    sends_gradients: ClassVar[bool] = False

    def shared(self) -> State:
        """Nothing has entered."""
        zeros = torch.zeros(len(self.parts), dtype=torch.float64)
        switches = {f"{self.name}.{part}": zeros[:1] for part in self.parts}
        sums = {f"{self.name}.{key}": zeros for key in ("gain", "error")}
        return {**switches, **sums, f"{self.name}.rows": zeros[:1], f"{self.name}.null": zeros[:1]}

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Differences, their squares, and counts."""
        dtype, parts = old[f"{self.name}.gain"].dtype, (len(self.parts),)
        return {
            "gain": Field(parts, dtype, lambda d: d.abs() <= MAX_GAIN_NATS),
            "square": Field(parts, dtype, not_negative),
            "favour": Field(parts, dtype, lambda d: d.abs() <= 1),
            "favour_square": Field(parts, dtype, lambda d: (d >= 0) & (d <= 1)),
            "nulls": Field((self.nulls,), dtype, lambda d: d.abs() <= MAX_GAIN_NATS),
            "rows": Field((1,), dtype, not_negative),
            "judged": Field((1,), dtype, lambda c: (c >= 0) & (c <= 1)),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's gain by every part in nats, tanh of half of it, both squared, and versions' log densities."""
        like = chunk.shared[f"{self.name}.gain"]
        size = len(chunk.clients)
        d, nulls, rows = (like.new_zeros((size, k)) for k in (len(self.parts), self.nulls, 1))
        if chunk.round <= self.until:
            d, nulls, n = (v.to(like).nan_to_num(0.0, MAX_GAIN_NATS, -MAX_GAIN_NATS) for v in self.gains(chunk))
            d, nulls, rows = (
                d.clamp(-MAX_GAIN_NATS, MAX_GAIN_NATS),
                nulls.clamp(-MAX_GAIN_NATS, MAX_GAIN_NATS),
                n[:, None],
            )
        t = (d / 2).tanh()
        return {
            "gain": d, "square": d.square(), "favour": t, "favour_square": t.square(), "nulls": nulls, "rows": rows,
            "judged": (rows > 0).to(like),
        }  # fmt: skip

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """What is known of each part's gain; at the end of a phase one enters."""
        if context.round > self.until:
            return dict(old)
        kept, share = context.rule_state, context.reported / context.num_clients
        for key, value in total.items():
            mean = value.double() / context.reported
            kept[key] = mean if key not in kept else kept[key] + share * (mean - kept[key])
        gain, square, favour, favour_square, rows, judged = (
            kept[k] * context.num_clients for k in ("gain", "square", "favour", "favour_square", "rows", "judged")
        )
        like = old[f"{self.name}.gain"]
        was = torch.cat([old[f"{self.name}.{part}"] for part in self.parts]) > 0
        # What has entered keeps what it gained when it did.
        gain = torch.where(was, like.double(), gain)
        error = torch.where(was, old[f"{self.name}.error"].double(), sum_error(gain, square, judged))
        entered = was
        if context.round in self.ends:
            # What has entered has a favour of zero.
            passes = (
                (gain > MIN_GAIN_NATS) & above_zero(favour, sum_error(favour, favour_square, judged), judged) & ~was
            )
            best = torch.where(passes, gain, -torch.inf).argmax()
            entered = was | (passes & (torch.arange(len(self.parts), device=best.device) == best))
        values = {"gain": gain, "error": error, "rows": rows, "null": kept["nulls"].argmax()[None]}
        values |= {part: entered[k : k + 1] for k, part in enumerate(self.parts)}
        return {k: values[k.removeprefix(f"{self.name}.")].to(v) for k, v in old.items()}

    @property
    def ends(self) -> Sequence[int]:
        """The rounds that end a phase."""
        many = len(self.parts)
        return [max(1, self.until * (many + k) // (2 * many)) for k in range(many + 1)]


def sum_error(total: Tensor, square: Tensor, clients: Tensor) -> Tensor:
    """The standard error of a sum over independent clients, from it and the sum of squares."""
    spread = (square - total.square() / clients.clamp_min(1)).clamp_min(0)
    return (spread * clients / (clients - 1).clamp_min(1)).sqrt()


def above_zero(total: Tensor, error: Tensor, clients: Tensor) -> Tensor:
    """Whether the mean over clients is, by Student's t at 5 % of one side; of two clients nothing is said."""
    return (clients >= 3) & (total > 0) & (total > student(clients - 1) * error)


def student(degrees: Tensor) -> Tensor:
    """The quantile of Student's t at 95 %, by its expansion around the normal's (Abramowitz and Stegun 26.7.5)."""
    z, v = NORMAL, degrees.clamp_min(1)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
