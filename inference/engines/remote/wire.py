"""Bytes between a server and its sites: one safetensors file, whose header says the rest. Nothing is unpickled."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from hierfl.errors import UserError
from hierfl.metrics.pooling import MetricSums

from ...state import State, StateForm, form_of_state
from ..base import Scores
from .own_code import code_digest

#: of requests and answers; 2: each is signed
FORMAT = 2
#: bytes that a header may take: names and shapes of some thousand tensors
LARGEST_HEADER = 2**20


class Unreadable(UserError):
    """Bytes that are no request or answer. What is said of them holds nothing that they say."""


@dataclass(frozen=True)
class Handshake:
    """What server and sites must have in common; it is in every request.

    Attributes:
        study: a digest of what they have agreed on.
        method: a digest of the method's code.
        roster: a digest of who takes part, and of their public cards.
        torch: its version: initial values and operations may differ between versions.
        code: a digest of hierfl's own files.
        format: of the bytes.
    """

    study: str
    method: str
    roster: str = ""
    torch: str = torch.__version__.partition("+")[0]
    code: str = field(default_factory=code_digest)
    format: int = FORMAT

    def table(self) -> dict[str, Any]:
        """The handshake as an entry of a request."""
        return asdict(self)

    def differs(self, other: object) -> str:
        """What is not as a request says, in words; empty where all is."""
        if not isinstance(other, Mapping):
            return "it says nothing of its study"
        words = {
            "format": f"requests are of format {self.format} here: install the same version of hierfl at both ends",
            "study": "the study is another one: compare study.toml at both ends",
            "method": "the method's code differs: install the same version of it at both ends",
            "torch": f"torch is {self.torch} here: install the same version at both ends",
            "code": "hierfl's own files differ: install the same version of hierfl at both ends, unchanged",
            "roster": "the roster or its keys differ: send study.toml to every site again, and approve it there",
        }
        for name, problem in words.items():
            if other.get(name) != getattr(self, name):
                return problem
        return ""


def encode(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A header and tensors of any device as bytes.

    Args:
        head: what json can say.
        tensors: {name: any shape}.
    """
    flat = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    return save(flat, {"hierfl": json.dumps(dict(head))})


def decode(data: bytes, most: int | None = None) -> tuple[dict[str, Any], State]:
    """What :func:`encode` was given; what the tensors are is for the receiver to check.

    Args:
        data: the bytes.
        most: how many they may be; None for any number.

    Raises:
        Unreadable: for anything else.
    """
    if most is not None and len(data) > most:
        raise Unreadable(f"{len(data)} bytes, where at most {most} are expected")
    head = header(data)
    try:
        return head, load(data)
    except Exception as error:  # whatever parsers raise of bytes that others have made
        raise Unreadable(f"it is no message of hierfl ({type(error).__name__})") from error


def header(data: bytes) -> dict[str, Any]:
    """The header alone.

    Raises:
        Unreadable: for bytes that have none.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(LARGEST_HEADER, len(data) - 8):
        raise Unreadable("it is cut off, or no safetensors file")
    try:
        head = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["hierfl"])
    except Exception as error:  # as above
        raise Unreadable(f"it is no message of hierfl ({type(error).__name__})") from error
    if not isinstance(head, dict):
        raise Unreadable("its header is no table")
    return head


def is_cut_off(data: bytes) -> bool:
    """Whether bytes are the beginning of a longer message: of a file that is still being copied, say.

    Of what is no message at all it says no.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or len(data) < 8 + size <= 8 + LARGEST_HEADER:
        return True
    try:
        places = [
            entry["data_offsets"][1] for name, entry in json.loads(data[8 : 8 + size]).items() if name[:2] != "__"
        ]
        return len(data) < 8 + size + max(places, default=0)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return False


def check_form(tensors: Mapping[str, Tensor], form: StateForm, *, finite: bool = True) -> State:
    """Refuses tensors of other names, shapes or dtypes, or that are not finite.

    Returns:
        The tensors in the form's order, which is that of values at both ends: a file keeps none.

    Raises:
        Unreadable: naming what is wanted.
    """
    actual = form_of_state(tensors)
    if lacking := sorted(form.keys() - actual.keys()):
        raise Unreadable(f"{lacking[0]!r} is missing")
    if len(actual) > len(form):
        raise Unreadable(f"it holds {len(actual)} tensors, expected {len(form)}")
    for name, wanted in form.items():
        if actual[name] != wanted:
            raise Unreadable(f"{name!r} is {actual[name][1]} {actual[name][0]}, expected {wanted[1]} {wanted[0]}")
        if finite and tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all()):
            raise Unreadable(f"{name!r} is not finite")
    return {name: tensors[name] for name in form}


def nbytes(form: StateForm) -> int:
    """The bytes of tensors of a form."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in form.values())


#: metrics of which no one has more than this
BOUNDED = {"accuracy": 1.0, "accuracy_pooled": 1.0, "ece": 1.0, "brier": 2.0, "coverage90": 1.0}
BOUNDED |= {"set_coverage": 1.0, "set_coverage_pooled": 1.0, "unheard": 1.0, "unheard_coverage": 1.0}
#: sums that are counts, or bins and histograms of them
COUNTS = ("clients", "examples", "bins", "worst10_accuracy", "ece_pooled", "worst", "unheard")


def check_scores(tensors: Mapping[str, Tensor]) -> None:
    """Refuses one client's sums of metrics that cannot be one's.

    A metric itself may be infinite, or no number, where a model has diverged.

    Args:
        tensors: as of :func:`flat_scores`.

    Raises:
        Unreadable: for counts that are not one client's, and sums out of range.
    """
    for part, sums in nested(tensors).items():
        examples = sums["examples"]
        counts = torch.cat([value.flatten() for name, value in sums.items() if name in COUNTS])
        if not bool((counts.isfinite() & (counts >= 0) & (counts <= 2**53)).all()) or examples != examples.round():
            raise Unreadable("its counts are none")
        if part != "global" and float(sums["clients"]) != float(examples > 0):
            raise Unreadable("its counts are not one client's")
        for name, value in sums.items():
            of_each = part != "global" and not name.endswith("_pooled")  # a sum over clients, and this is one
            most = BOUNDED.get(name, math.inf) * (1.0 if of_each else float(examples)) * (1 + 1e-6)
            if bool(((value < 0) & (name != "nll")).any()) or bool((value > most).any()):
                raise Unreadable(f"its {name!r} is out of range")


def check_calibration(tensors: Mapping[str, Tensor]) -> None:
    """Refuses one client's answer to a :class:`~hierfl.inference.calibration.question.Question` that cannot be one's.

    Args:
        tensors: {"group|key": ...}.

    Raises:
        Unreadable: for counts that are none, likelihoods that do not bend as they must, and metrics out of range.
    """
    for name, value in tensors.items():
        if not name.endswith(("|terms", "|counts")):
            check_scores(tensors)
            return
        counts = value[:1] if name.endswith("|terms") else value
        signed = value[[0, 1, 3]] if name.endswith("|terms") else value  # a slope has either sign
        if not bool(value.isfinite().all()) or bool((signed < 0).any()) or not bool((counts == counts.round()).all()):
            raise Unreadable("its sums cannot be one client's")


def check_size(tensors: Mapping[str, Tensor], clients: int) -> None:
    """Refuses numbers whose sum over so many clients, or its square, could overflow.

    Raises:
        Unreadable: for one.
    """
    for name, value in tensors.items():
        if value.is_floating_point() and bool((value.abs() > math.sqrt(torch.finfo(value.dtype).max) / clients).any()):
            raise Unreadable(f"{name!r} is too large")


def flattened(groups: Mapping[str, Mapping[str, Tensor]]) -> State:
    """{group: {key: tensor}} as {"group|key": tensor}."""
    return {f"{group}|{key}": value for group, state in groups.items() for key, value in state.items()}


def flat_scores(scores: Scores) -> State:
    """The sums of scores, as a site sends them: {"0|NAME": ..., "global|NAME": ...}."""
    parts: dict[str, MetricSums] = {str(kind): part for kind, part in enumerate(scores.personal)}
    parts |= {} if scores.global_model is None else {"global": scores.global_model}
    return flattened({part: {k: torch.as_tensor(v) for k, v in sums.items()} for part, sums in parts.items()})


def flat_answer(sums: Mapping[str, MetricSums]) -> State:
    """The sums of an answer to a calibration's question, as a site sends them."""
    return flattened({group: {k: torch.as_tensor(v) for k, v in own.items()} for group, own in sums.items()})


def nested(flat: Mapping[str, Tensor]) -> dict[str, State]:
    """Undoes :func:`flattened`.

    Raises:
        Unreadable: for a name without a group.
    """
    groups: dict[str, State] = {}
    for name, value in flat.items():
        group, bar, key = name.partition("|")
        if not bar:
            raise Unreadable("a tensor belongs to no group")
        groups.setdefault(group, {})[key] = value
    return groups


def under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """Those whose names begin with ``prefix/``, without it."""
    return {k.removeprefix(f"{prefix}/"): v for k, v in tensors.items() if k.startswith(f"{prefix}/")}


def put_under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """Undoes :func:`under`."""
    return {f"{prefix}/{k}": v for k, v in tensors.items()}
