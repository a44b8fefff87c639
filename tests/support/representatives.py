"""The fewest methods that between them use every mechanism: what must hold of all methods is asked of these.

A mechanism is a class of local step, aggregation rule, stage, codec, kernel or distribution that a method declares, a
switch of one (``Langevin.metropolis``), or a trait of the method that engines and evaluation ask about. It is read from
what ``local()``, ``exchange()``, ``pipeline()``, ``schedule()``, model and guide give, so that a new mechanism enters
by itself, and a method that recombines old ones adds nothing. The other methods keep their test in the slow set.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, get_origin

import pytest
import torch
from pyro import validation_enabled
from support.federations import blobs
from support.methods import case_name, network_for

from hierfl import Federation
from hierfl.inference import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.sites import guide_latents, model_sites
from hierfl.inference.state import client_view
from hierfl.nn.architecture import Architecture
from hierfl.ppl.restrict import Site

Case = tuple[type[Method], dict[str, Any]]
T = TypeVar("T")
#: what engines, server and evaluation ask a method, beside what it declares
TRAITS = (
    "needs_everyone", "conditions", "latent", "tabular", "replies", "local_copies", "independent_draws",
    "prior_has_seen_data", "has_global_model", "global_moments",
)  # fmt: skip


def _walk(value: object, depth: int = 0) -> Iterator[str]:
    """Classes of the project that are reached from a value, and their switches."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _walk(item, depth)
    cls = type(value)
    ours = any(base.__module__.startswith("hierfl.") for base in cls.__mro__)
    if not ours or isinstance(value, type | Method | Architecture):
        return
    yield cls.__qualname__
    fields = {f.name: f.type for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else vars(value)
    for name, annotation in fields.items():
        inner = getattr(value, name)
        if isinstance(inner, bool) or (isinstance(inner, str) and _is_choice(cls, annotation)):
            yield f"{cls.__qualname__}.{name}={inner}"
        elif depth < 8:
            yield from _walk(inner, depth + 1)


def _is_choice(cls: type, annotation: object) -> bool:
    """Whether an annotation is a Literal, or the name of one where the class or a base of it is defined."""
    if not isinstance(annotation, str):
        return get_origin(annotation) is Literal
    modules = [vars(sys.modules[base.__module__]) for base in cls.__mro__]
    return annotation.startswith("Literal[") or any(get_origin(names.get(annotation)) is Literal for names in modules)


def _kinds(sites: Mapping[str, Site], where: str) -> Iterator[str]:
    """What is drawn from which distribution."""
    for site in sites.values():
        inner: Any = getattr(site.fn, "base_dist", site.fn)
        yield f"{where} {site.kind}: {type(inner).__name__}{', of each example' if site.per_example else ''}"


def of_messages(method: Method) -> frozenset[str]:
    """What a server has of a method, by name: rules, and what messages pass."""
    return frozenset({*_walk(dict(method.exchange())), *_walk(dict(method.pipeline()))})


def of_steps(method: Method) -> frozenset[str]:
    """The steps of a method's clients in a round, by name."""
    return frozenset(_walk([*method.local()]))


def of_rules(case: Case) -> frozenset[str]:
    """What a server makes of the messages of a method with these settings, and what they pass."""
    cls, settings = case
    return of_messages(cls(network_for(cls, _federation()), **settings))


def of_new_clients(case: Case) -> frozenset[str]:
    """What a client that was never seen does with its rows, and what predictions of it ask a method."""
    return frozenset(
        mechanism for mechanism in used(case) if mechanism.startswith("new client: ") or mechanism in TRAITS
    )


def mechanisms(method: Method, federation: Federation) -> frozenset[str]:
    """What a method uses, by name.

    Args:
        method: any.
        federation: whose template its model is run on.
    """
    schedule = method.schedule()
    names = {*of_steps(method), *of_messages(method)}
    names |= {f"final: {name}" for name in _walk([*schedule.final_steps])}
    names |= {f"new client: {name}" for name in _walk([*method.new_client_steps()])}
    names |= {f"schedule.{name}={getattr(schedule, name)}" for name in ("absent", "commit", "final_when")}
    names |= {name for name in TRAITS if getattr(method, name, False)}
    template = dataclasses.replace(federation, dtype=torch.float64).template()
    start = InitialWeights.for_network(method.network, 0)
    shared, own = (
        {k: v.to(template.n.dtype) for k, v in values.items()}
        for values in (method.shared(start), method.personal(start))
    )
    names |= {f"layer: {type(layer).__name__}" for net in method.network.networks for layer in net.module.modules()}
    names |= {"a client's own running statistics" for name in own if name.endswith("running_mean")}
    values = client_view(shared, {k: v[None, None] for k, v in own.items()})
    with validation_enabled(False), torch.no_grad():
        latents = guide_latents(method, template, values, None)
        names |= {*_kinds(latents, "guide"), *_kinds(model_sites(method, template, values, latents), "model")}
    return frozenset(names)


def cover(uses: Mapping[str, Collection[str]]) -> list[str]:
    """The names of few that between them use all that any of them uses, in the order of the mapping.

    Greedy: who adds most comes first, of equals the first; then who has become needless is left out.
    """
    left, chosen = {mechanism for used in uses.values() for mechanism in used}, list[str]()
    while left:
        best = max(uses, key=lambda name: len(left & {*uses[name]}))
        chosen.append(best)
        left -= {*uses[best]}
    for name in chosen[::-1]:
        others = {mechanism for other in chosen if other != name for mechanism in uses[other]}
        if {*uses[name]} <= others:
            chosen.remove(name)
    return [name for name in uses if name in chosen]


@cache
def _federation() -> Federation:
    return blobs([23, 7, 2, 14])


@cache
def _used(cls: type[Method], settings: tuple[tuple[str, Any], ...]) -> frozenset[str]:
    return mechanisms(cls(network_for(cls, _federation()), **dict(settings)), _federation())


def used(case: Case) -> frozenset[str]:
    """What a method with these settings uses, on three classes."""
    return _used(case[0], tuple(case[1].items()))


def of_state(case: Case) -> frozenset[str]:
    """What a store of clients' values, and who resumes them, has of a method."""
    cls, settings = case
    method = cls(network_for(cls, _federation()), **settings)
    schedule, start = method.schedule(), InitialWeights.for_network(method.network, 0)
    names = {f"schedule.{name}={getattr(schedule, name)}" for name in ("absent", "commit", "final_when")}
    names |= {f"final: {name}" for name in _walk([*schedule.final_steps])}
    traits = ("replies", "local_copies", "conditions", "needs_everyone")
    names |= {name for name in traits if getattr(method, name, False)}
    return frozenset(names | ({"personal"} if method.personal(start) else {"nothing personal"}))


def of_local(case: Case) -> frozenset[str]:
    """What the steps of a method's clients are, in a round and at the end."""
    cls, settings = case
    method = cls(network_for(cls, _federation()), **settings)
    return frozenset({*_walk([*method.local()]), *_walk([*method.schedule().final_steps])})


def representatives(cases: Sequence[Case], used: Callable[[Case], Collection[str]] = used) -> list[Case]:
    """Those of the cases that use every mechanism that any of them uses."""
    chosen = cover({case_name(case): used(case) for case in cases})
    return [case for case in cases if case_name(case) in chosen]


def of_all(cases: Sequence[T], quick: Collection[T], name: Callable[[T], str]) -> list[Any]:
    """Parameters of a test: all cases, of which those that are not quick are in the slow set."""
    return [pytest.param(case, id=name(case), marks=() if case in quick else (pytest.mark.slow,)) for case in cases]


def over_methods(cases: Sequence[Case], used: Callable[[Case], Collection[str]] = used) -> pytest.MarkDecorator:
    """Parametrises ``case``: the representatives in the quick set, the others in the slow one.

    Args:
        cases: methods and settings.
        used: the mechanisms that the test is about; all of them unless it says so.
    """
    return pytest.mark.parametrize("case", of_all(cases, representatives(cases, used), case_name))
