"""What would leave a site of a study: every value's name, shape and meaning, made from the method's rules."""

from __future__ import annotations

import inspect
import math
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
from hierfl.inference.engines.remote.wire import flat_answer, flat_scores, flattened
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import StateForm, form_of_state

from .study import Study

if TYPE_CHECKING:
    from hierfl.data.federation import Federation
    from hierfl.inference import Method
    from hierfl.inference.options import Options


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
        """Of its shape, in words."""
        return " x ".join(map(str, self.shape)) or "1"


def leaving(study: Study, site: SiteData) -> list[Leaving]:
    """All values that leave a site whose data are these."""
    meanings = study.data.meanings()
    found: list[Leaving] = []
    before: list[NamedSums] = []
    for step in range(study.data.steps):
        sums = site.sums(before)
        for name, shape in study.data.form(before).items():
            found.append(Leaving(f"prepare, step {step + 1}", name, shape, 8 * math.prod(shape), meanings[name]))
        before.append(sums)
    outline, network = study.data.form_model(site, study.loaded.cls.latent)
    method, options = study.method(network), study.options("cpu")
    return found + answers(method, outline, options, new_clients=study.new_clients)


def answers(method: Method, outline: Federation, options: Options, *, new_clients: bool = False) -> list[Leaving]:
    """All values that a site of a method sends once it is prepared.

    Args:
        method: the study's.
        outline: what is known of the data.
        options: the study's.
        new_clients: whether sums of what a new client begins with leave.
    """
    start = InitialWeights.of(method.network, options.seed)
    shared, initial = (
        {k: v.detach().to(options.dtype) for k, v in values.items()}
        for values in (method.shared(start), method.personal(start))
    )
    exchange = Exchange(method.exchange(), method.pipeline(), method.expand, shared)
    expected = Expected(method, outline.to("cpu", options.dtype), options, shared, initial, exchange)
    found = [Leaving("hello", "splits", (), 0, "which of train, validation and test it has; its name and last round")]
    for name, (shape, dtype) in expected.message.items():
        group, _, key = name.partition("|")
        rule = type(exchange.sending[group].rule)
        what = f"{_first_line(rule.message)} ({rule.__name__}: {_first_line(rule)})"
        found.append(Leaving(f"round (message of {group!r})", key, shape, math.prod(shape) * dtype.itemsize, what))
    with torch.no_grad(), pyro.get_param_store().scope():
        broadcast = Broadcast(options.rounds, shared, final=False)
        scores = form_of_state(flat_scores(expected.no_scores(1)))
        words = {
            "0": "its own metrics (sums of one site), of its own model",
            "global": "sums over its test examples, of the global model",
        }
        found += _listed("scores", scores, words)
        words = {
            "0": "its own, of its own model: of a temperature on validation data; then on test data, as scores",
            "1": "the same of predictions averaged over draws",
            "scores": "its validation examples, counted by the probability of all labels likelier than the true one",
            "sets": "how its sets of labels do on its test data, and whether it has validation data",
        }
        for question in questions_of(options, random=expected.fitted(broadcast).trace.random):
            found += _listed("calibration", form_of_state(flat_answer(no_answer(question))), words)
        sums = expected.no_sums(broadcast, summary=True, new=new_clients)
    words = {
        "new": "its own values, its part of the mean that a new client begins with",
        "summary": f"for the report, its part of the sum: {_first_line(method.summary_terms)}",
    }
    return found + _listed("sums", form_of_state(flattened(sums)), words)


def _listed(request: str, form: StateForm, words: dict[str, str]) -> list[Leaving]:
    found = []
    for name, (shape, dtype) in form.items():
        group, _, key = name.partition("|")
        found.append(Leaving(request, key, tuple(shape), math.prod(shape) * dtype.itemsize, words[group]))
    return found


def _first_line(described: object) -> str:
    """The first sentence of what a rule or method says of itself."""
    return " ".join((inspect.getdoc(described) or "").split("\n\n")[0].split()).rstrip(".")
