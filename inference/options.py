"""How a fit is run: everything that is not the method's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import torch

from hierfl.errors import UserError, unknown
from hierfl.nn.precision import Precision

from .checks import MAX_DRAWS, MAX_WHOLE_NUMBER, check_device, check_number, check_whole
from .messages.limits import LARGEST_RATIO, MAX_MESSAGE_RATIO
from .method.schedule import ABSENT, Absent
from .server.robust.parse import parse_rule

#: the largest number of rounds: a fit of more does not end
MAX_ROUNDS = 1_000_000
#: the ends of epsilon: with a smaller one nothing is learned, and the noise of a larger one hides nothing
MIN_EPSILON, MAX_EPSILON = 1e-3, 1e9
#: the ends of clip: with a smaller one nothing is learned, and with a larger one the noise overflows
MIN_CLIP, MAX_CLIP = 1e-6, 1e9
#: what predictions are calibrated by, after the last round
Calibrate = Literal["none", "temperature"]
#: where clients' own values lie between rounds
Home = Literal["device", "host"]
#: what clients do after the last round
Final = Literal["method", "chains"]
#: where noise hides a person: nowhere, inside each client where it hides a row, or to the sum over clients
#: It hides a whole client.
Dp = Literal["none", "site", "client"]


@dataclass(frozen=True)
class Options:
    """How a fit is run; everything that is not the method's.

    Attributes:
        rounds: T, at most a million.
        seed: of initial values, participation, minibatches and noise.
        participation: the probability with which each client reports in a round.
        quorum: a round with fewer valid messages changes nothing.
        evaluate_every: evaluation after rounds 1, 1 + k, 1 + 2k, ... and the last.
        absent_clients: what clients do at most in a round in which they do not report: "train", so that their own
            values are always fresh; "catch-up", train only in rounds that are evaluated (of which the last always is
            one); "freeze", so that they are evaluated as they last reported. A method's schedule may forbid more; see
            :class:`~hierfl.inference.method.schedule.Schedule`.
        draws: of the posterior, for predictions averaged over draws; at most 100,000.
        chunk: rows in one plate; 0 for what suits the device.
        device, dtype: where and in what the fit is computed.
        precision: in what networks multiply while they train in float32, see :mod:`hierfl.nn.precision`; evaluation
            and everything else is computed in full.
        client_state: where clients' own values lie between rounds: on the "device", or in memory of the "host", from
            which a plate's rows are streamed where all of them do not fit.
        cuda_graphs: whether the steps on a CUDA device are recorded and issued again, which takes less of the host.
        final: what clients do after the last round: the "method"'s own final steps, or Metropolis-adjusted "chains" on
            their heads, see :mod:`hierfl.inference.method.final_chains`.
        max_message_ratio: a client's value counts if its largest number is at most so many times that of the broadcast
            value, or of 1 where that is less; 0 for no such bound. It holds for messages that are averaged, divided by
            the weight inside (compressed ones as they are decoded). It stops what is grossly wrong, as a value that
            has overflowed; not a lie of a plausible size. Gradients have no such scale, and are kept from overflowing.
        calibrate: "temperature" finds one that all clients share, by their validation data, after the last round.
        conformal: how often a set of labels may miss the true one, in (0, 1); 0 for no sets. Their threshold is by
            validation data, too. See :mod:`hierfl.inference.calibration`.
        masked: whether the server gets sums over clients alone, of numbers in fixed point; see
            :mod:`hierfl.inference.messages.fixed_point`.
        mask_groups: into how many groups of at least three clients masked sums are divided, so that a robust rule can
            compare them; 0 for one sum over all.
        robust: how messages are combined where some may lie, see :mod:`hierfl.inference.server.robust`; "none" adds
            them up.
        dp: where noise for differential privacy is added, see :mod:`hierfl.inference.noise`.
        epsilon, delta: of the whole fit, everything that leaves a client included; from 0.001 to 1e9, 0 without
            noise.
        clip: the largest norm that one unit (a row of "site", a client of "client") adds to a message, from 1e-6 to
            1e9.
        patient_rows: rows of one patient that count; the others are left out.
        usual_rows: of a network with dp="site": a public number of rows of a client, by which sampling rates, numbers
            of steps and step sizes are set instead of n_j; 0 for the mean over clients, in a simulation alone.
        splits: on what it is evaluated; anyone who chooses settings leaves "test" out.
    """

    rounds: int = 30
    seed: int = 0
    participation: float = 1.0
    quorum: int = 1
    evaluate_every: int = 1
    absent_clients: Absent = "train"
    draws: int = 20
    chunk: int = 0
    device: str = "cpu"
    client_state: Home = "device"
    cuda_graphs: bool = False
    dtype: torch.dtype = torch.float32
    precision: Precision = "full"
    final: Final = "method"
    max_message_ratio: float = MAX_MESSAGE_RATIO
    calibrate: Calibrate = "none"
    conformal: float = 0.0
    masked: bool = False
    mask_groups: int = 0
    robust: str = "none"
    dp: Dp = "none"
    epsilon: float = 0.0
    delta: float = 1e-5
    clip: float = 1.0
    patient_rows: int = 1
    usual_rows: int = 0
    splits: tuple[str, ...] = ("validation", "test")

    @classmethod
    def for_method(cls, method: object, **given: Any) -> Options:
        """Options by name.

        Args:
            method: that they are for; its settings are no options.
            **given: values of the fields.

        Raises:
            UserError: for a name that is no option, or a value that cannot be.
        """
        for name in sorted(given.keys() - {f.name for f in fields(cls)}):
            kind, settings = type(method).__name__, getattr(getattr(method, "settings", None), "__dict__", {})
            if close := [setting for setting in settings if name in setting]:
                raise UserError(
                    f"{name!r} is no option of fit; settings are the method's, as in {kind}(network, {close[0]}=...): "
                    f"{', '.join(close)}"
                )
            raise unknown("option of fit", name, (f.name for f in fields(cls)))
        return cls(**given)

    def __post_init__(self) -> None:
        for f in fields(self):  # NumPy's numbers become Python's, and a device its name
            value = getattr(self, f.name)
            if isinstance(value, np.generic | torch.device):
                object.__setattr__(self, f.name, value.item() if isinstance(value, np.generic) else str(value))
        for name, least, largest in (
            ("rounds", 0, MAX_ROUNDS),
            ("quorum", 1, MAX_WHOLE_NUMBER),
            ("evaluate_every", 1, MAX_WHOLE_NUMBER),
            ("draws", 1, MAX_DRAWS),
            ("chunk", 0, MAX_WHOLE_NUMBER),
            ("mask_groups", 0, MAX_WHOLE_NUMBER),
            ("patient_rows", 1, MAX_WHOLE_NUMBER),
            ("usual_rows", 0, MAX_WHOLE_NUMBER),
            ("seed", 0, 2**63 - 1),
        ):
            check_whole(name, getattr(self, name), least, largest)
        check_number("participation", self.participation)
        check_number("max_message_ratio", self.max_message_ratio)
        if not 0 < self.participation <= 1:
            raise UserError(f"participation must lie in (0, 1], not {self.participation}")
        if self.max_message_ratio != 0 and not 1 <= self.max_message_ratio <= LARGEST_RATIO:
            most = f"{LARGEST_RATIO:g}"
            raise UserError(f"max_message_ratio must be 0 (none) or from 1 to {most}, not {self.max_message_ratio}")
        if self.dtype not in (torch.float32, torch.float64):
            raise UserError(f"dtype: a fit is computed in torch.float32 or torch.float64, not {self.dtype}")
        if self.precision not in get_args(Precision):
            raise unknown("precision", self.precision, get_args(Precision))
        if self.precision != "full" and self.dtype != torch.float32:
            raise UserError(f"precision {self.precision!r} is of fits in torch.float32, not {self.dtype}")
        if self.absent_clients not in ABSENT:
            raise unknown("value of absent_clients", self.absent_clients, ABSENT)
        if self.client_state not in get_args(Home):
            raise unknown("place for client_state", self.client_state, get_args(Home))
        if self.calibrate not in get_args(Calibrate):
            raise unknown("value of calibrate", self.calibrate, get_args(Calibrate))
        check_number("conformal", self.conformal)
        if not 0 <= self.conformal < 1:
            raise UserError(f"conformal must be 0 (no sets) or lie in (0, 1), not {self.conformal}")
        if self.final not in get_args(Final):
            raise unknown("value of final", self.final, get_args(Final))
        if self.dp not in get_args(Dp):
            raise unknown("value of dp", self.dp, get_args(Dp))
        for name in ("epsilon", "delta", "clip"):
            check_number(name, getattr(self, name))
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{name} must be a finite number, not {getattr(self, name)}")
        if (self.dp == "none") != (self.epsilon == 0) or self.epsilon < 0:
            raise UserError(
                "epsilon is a number above 0 of a fit with noise (dp='site' or 'client'), and 0 without: here dp is "
                f"{self.dp!r}, and epsilon {self.epsilon:g}"
            )
        if self.epsilon and not MIN_EPSILON <= self.epsilon <= MAX_EPSILON:
            least = self.epsilon < MIN_EPSILON
            limit = f"at least {MIN_EPSILON:g}" if least else f"at most {MAX_EPSILON:g}"
            why = "so much noise leaves nothing to learn" if least else "that much hides nothing"
            raise UserError(f"epsilon must be {limit}, not {self.epsilon:g}: {why}")
        if not 0 < self.delta < 1 or not MIN_CLIP <= self.clip <= MAX_CLIP:
            limits = f"delta lies in (0, 1) and clip from {MIN_CLIP:g} to {MAX_CLIP:g}"
            raise UserError(f"{limits}, not {self.delta:g} and {self.clip:g}")
        for name, kinds in OF_NOISE.items():
            if self.dp not in kinds and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                noisy = " or ".join(map(repr, kinds))
                raise UserError(f"{name} is of a fit with noise (dp {noisy}), not of dp {self.dp!r}")
        if self.mask_groups and not self.masked:
            raise UserError("mask_groups divides masked sums, and masked is not set")
        parse_rule(self.robust)
        check_device(self.device)
        if self.cuda_graphs and torch.device(self.device).type == "cpu":
            raise UserError("CUDA graphs need a CUDA device (device='cuda'), not 'cpu'")
        if self.precision == "tf32" and torch.device(self.device).type == "cpu":
            raise UserError("precision 'tf32' needs a CUDA device (device='cuda'), not 'cpu'; 'bf16' does not")

    def evaluates(self, number: int) -> bool:
        """Whether round ``number`` is one of those after which everything is evaluated."""
        return number == self.rounds or (number - 1) % self.evaluate_every == 0

    @property
    def asked(self) -> float:
        """The probability with which a client is asked to report in a round.

        With noise on the sum everyone is, and whether it has something to say is its own coin.
        """
        return 1.0 if self.dp == "client" else self.participation

    @property
    def identity(self) -> dict[str, object]:
        """What must be the same for a resumed fit to be the one that was begun."""
        return {name: getattr(self, name) for name in (*IDENTITY, *NEWER)}


#: options that a resumed fit must keep
IDENTITY = ("seed", "participation", "quorum", "evaluate_every", "absent_clients", "draws", "max_message_ratio")
#: likewise, and what fits did before these could be said
NEWER: dict[str, object] = {
    "calibrate": "none", "conformal": 0.0, "final": "method", "masked": False, "mask_groups": 0, "robust": "none",
    "dp": "none", "epsilon": 0.0, "delta": 1e-5, "clip": 1.0, "patient_rows": 1,
    "usual_rows": 0,
}  # fmt: skip
#: values of dp with which an option says something
OF_NOISE: dict[str, tuple[str, ...]] = {
    "delta": ("site", "client"), "clip": ("site", "client"), "patient_rows": ("site",), "usual_rows": ("site",),
}  # fmt: skip
