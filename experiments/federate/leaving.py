"""What would leave a site of a study: every value's name, shape and meaning, made from the method's rules."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyro
import torch

from hierfl.data.federated.study_data import SiteData
from hierfl.data.federated.sums import NamedSums
from hierfl.inference.calibration.answer import no_answer
from hierfl.inference.calibration.question import questions_of
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.engines.remote.expected import Expected
from hierfl.inference.engines.remote.masks.presence import TOLD_BYTES
from hierfl.inference.engines.remote.wire import flat_answer, flat_scores, flattened
from hierfl.inference.messages.fixed_point import FixedPoint
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.with_noise import plan_of
from hierfl.inference.noise.plan import UNIT, Plan
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import StateForm, form_of_state

from .masks import mode_of
from .public_sums import is_public, noisy_method
from .study import Study
from .support import Support

if TYPE_CHECKING:
    from hierfl.data.federation import Federation
    from hierfl.inference import Method
    from hierfl.inference.options import Options

#: of a study with noise
HELLO_WITH_NOISE = "none is said, as in any study with noise; its name and last round"


@dataclass(frozen=True)
class Leaving:
    """One value that leaves.

    Attributes:
        request: what it answers.
        name: of the value.
        shape: of it.
        nbytes: that it takes.
        meaning: in words.
    """

    request: str
    name: str
    shape: tuple[int, ...]
    nbytes: int
    meaning: str

    @property
    def dimensions(self) -> str:
        """The dimensions of its shape, in words."""
        return " x ".join(map(str, self.shape)) or "1"


def leaving(study: Study, site: SiteData) -> list[Leaving]:
    """All values that leave a site whose data are these."""
    meanings, options = study.data.meanings(), study.options("cpu")
    values: list[Leaving] = _of_masks(study)
    support, before = Support(study), list[NamedSums]()
    if support.steps:
        shape = next(iter(support.form().values()))
        words = "which levels, columns, groups and classes it has: counts of sites"
        values.append(Leaving("prepare, step 1", "support", shape, _nbytes(shape, torch.float64, True), words))
    # With noise nothing is asked before the first round: what is known of all rows is the dictionary's.
    for step in range(0 if is_public(study) else study.data.steps):
        sums = site.sums(before)
        for name, shape in study.data.form(before).items():
            size = _nbytes(shape, torch.float64, options.masked)
            values.append(Leaving(f"prepare, step {support.steps + step + 1}", name, shape, size, meanings[name]))
        before.append(sums)
    outline, network = study.data.form_model(site, study.loaded.cls.latent)
    method = noisy_method(study, network, outline)
    return values + answers(method, outline, options, new_clients=study.new_clients)


def answers(method: Method, outline: Federation, options: Options, *, new_clients: bool = False) -> list[Leaving]:
    """All values that a site of a method sends once it is prepared.

    Args:
        method: the study's.
        outline: what is known of the data.
        options: the study's.
        new_clients: whether sums of what a new client begins with leave.
    """
    start = InitialWeights.for_network(method.network, options.seed)
    shared, initial = (
        {k: v.detach().to(options.dtype) for k, v in values.items()}
        for values in (method.shared(start), method.personal(start))
    )
    exchange = Exchange(method.exchange(), method.pipeline(), method.expand, shared)
    expected = Expected(method, outline.to("cpu", options.dtype), options, shared, initial, exchange)
    plan = plan_of(method, options)
    has = "which of train, validation and test it has; its name and last round" if plan is None else HELLO_WITH_NOISE
    leaving_values = [Leaving("hello", "splits", (), 0, has)]
    for name, (shape, dtype) in expected.message.items():
        group, _, key = name.partition("|")
        rule = type(exchange.sending[group].rule)
        declared = getattr(rule, "MEANINGS", {}).get(key)
        what = declared or f"{_first_line(rule.message)} ({rule.__name__}: {_first_line(rule)}){_noise_words(plan)}"
        size = _nbytes(shape, dtype, options.masked)
        leaving_values.append(Leaving(f"round (message of {group!r})", key, shape, size, what))
    if plan is not None:  # nothing else has a share of epsilon, and nothing else is answered
        return leaving_values
    with torch.no_grad(), pyro.get_param_store().scope():
        broadcast = Broadcast(options.rounds, shared, final=False)
        if options.splits:
            scores = form_of_state(flat_scores(expected.no_scores(1)))
            words = {
                "0": "its own metrics (sums of one site), of its own model",
                "global": "sums over its test examples, of the global model",
            }
            leaving_values += _listed("scores", scores, words, options.masked)
        words = {
            "0": "its own, of its own model: of a temperature on validation data; then on test data, as scores",
            "1": "the same of predictions averaged over draws",
            "scores": "its validation examples, counted by the probability of all labels likelier than the true one",
            "sets": "how its sets of labels do on its test data, and whether it has validation data",
        }
        for question in questions_of(options, random=expected.fitted(broadcast).trace.random):
            leaving_values += _listed(
                "calibration", form_of_state(flat_answer(no_answer(question))), words, options.masked
            )
        sums = expected.no_sums(broadcast, summary=True, new=new_clients)
    words = {
        "new": "its own values, its part of the mean that a new client begins with",
        "summary": f"for the report, its part of the sum: {_first_line(method.summary_terms)}",
    }
    return leaving_values + _listed("sums", form_of_state(flattened(sums)), words, options.masked)


def _of_masks(study: Study) -> list[Leaving]:
    """What a site says about masks themselves; nothing of a study without them."""
    if not study.options("cpu").masked:
        return []
    whole, others = mode_of(study) == "whole", len(study.clients) - 1
    values = [
        Leaving("keys", "public keys", (), 0, "made for this study, of which the others make their masks with it")
    ]
    if not whole:
        words = {
            "shares": "parts of its masks' secrets, each encrypted to one other site",
            "sign": "that it agrees to a list of the sites whose sum is opened",
            "open": "parts of others' secrets, by which the sum over these sites is opened",
        }  # fmt: skip
        values += [Leaving(kind, "parts", (others,), 0, what) for kind, what in words.items()]
        what = "whether its message is in its answer: said to each other site alone, which opens no sum of too few"
        values.append(Leaving("round, scores", "told", (others, TOLD_BYTES), others * TOLD_BYTES, what))
    counts = "whether it reports, has failed or refuses: counts over all sites, masked in every answer"
    return [*values, Leaving("every masked answer", "counts", (3,), 3 * 8, counts)]


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype, masked: bool) -> int:
    """The bytes of a value as it is sent: under masks each number is a few integers."""
    bytes_each = 8 * FixedPoint.for_dtype(dtype).words if masked else dtype.itemsize
    return math.prod(shape) * bytes_each


def _noise_words(plan: Plan | None) -> str:
    """How much noise messages have, in words; empty for a fit without."""
    if plan is None:
        return ""
    parts = [
        f"{name}, {part.mechanism.releases} release{'s' * (part.mechanism.releases > 1)} with a standard deviation of "
        f"{part.multiplier:.3g} times what one {UNIT[plan.level]} can change"
        for name, part in plan.parts.items()
    ]
    where = "of this site" if plan.level == "site" else "of all sites together"
    return f"; with noise {where}: {', '.join(parts)}"


def _listed(request: str, form: StateForm, words: dict[str, str], masked: bool) -> list[Leaving]:
    values = []
    for name, (shape, dtype) in form.items():
        group, _, key = name.partition("|")
        values.append(Leaving(request, key, tuple(shape), _nbytes(tuple(shape), dtype, masked), words[group]))
    return values


def _first_line(described: object) -> str:
    """The first sentence of what a rule or method says of itself, names without their position."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", inspect.getdoc(described) or "")
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")
