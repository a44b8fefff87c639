"""The representatives use every mechanism, and what they use is read from the methods themselves."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from support.cases import METHODS
from support.engine_cases import CASES, quick, quick_messages
from support.federations import blobs
from support.methods import case_name, network_for
from support.paths import ROOT
from support.representatives import cover, mechanisms, of_messages, representatives, used
from support.senders import PARTIAL, QUICK, made, names

import hierfl.inference.local
import hierfl.inference.messages
import hierfl.inference.server.rules
import hierfl.models
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.models import FedAvg, FedPer

#: mechanisms of methods that the cases of all engines leave out, and the tests of them
ELSEWHERE = {
    "MovedHead": "inference/method/test_final_chains.py",
    **dict.fromkeys(("HeadSpreads", "RhoNodes"), "models/test_pfedhb_rho.py"),
    **dict.fromkeys(("LocationAndScale", "OutcomePopulation"), "models/test_pfedhb_outcome.py"),
    "OwnResponseSd": "inference/method/test_learned_sd.py",
    "Waiting": "models/test_pfedeb_waiting.py",
    "CrossProducts": "models/mixed_effects/test_one_round.py",
    "JointSums": "models/mixed_effects/test_joint_levels.py",
    "ShapedGradient": "models/any_model/marginals/test_engines.py",
    **dict.fromkeys(("NoisyProducts", "Release"), "models/mixed_effects/test_private.py"),
    **dict.fromkeys(("NoisyRounds", "WorkingRelease"), "models/mixed_effects/test_private_rounds.py"),
    **dict.fromkeys(("FitOwn", "DrawOwn", "StochasticAscent"), "models/any_model/own_guide/test_own_guide.py"),
    **dict.fromkeys(("FitSketched", "SketchedGradient"), "models/any_model/low_rank/test_engines.py"),
    **dict.fromkeys(("FitRows", "DrawRows"), "models/any_model/by_rows/test_by_rows.py"),
}
#: no mechanisms by themselves
BASES = {"SetValue", "Pipeline"}


def classes(package: Any) -> Iterator[type]:
    """Those that a package's files define."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for _, cls in inspect.getmembers(import_module(info.name), inspect.isclass):
            if cls.__module__ == info.name and not getattr(cls, "_is_protocol", False):
                yield cls


def is_mechanism(cls: type) -> bool:
    """Whether a class is a local step, an aggregation rule, a stage or a codec, as their protocols say."""
    has = {name for name in dir(cls) if callable(getattr(cls, name, None)) or isinstance(getattr(cls, name), property)}
    parts = [{"trains", "run"}, {"message", "update"}, {"send", "receive", "total"}, {"encode", "decode", "omega"}]
    return any(part <= has for part in parts)


def test_every_mechanism_is_in_a_representative() -> None:
    """Those that the packages define, against those that the chosen cases use."""
    packages = (hierfl.inference.local, hierfl.inference.messages, hierfl.inference.server.rules, hierfl.models)
    defined = {
        cls.__qualname__
        for package in packages
        for cls in classes(package)
        if is_mechanism(cls) and not cls.__name__.startswith("_")
    }
    assert len(defined) > 40
    chosen = set[str]().union(*map(used, representatives(METHODS)))
    chosen |= set[str]().union(*(mechanisms(*CASES[name]()) for name in quick()))
    chosen = {name.removeprefix("final: ").removeprefix("new client: ") for name in chosen}
    assert defined - chosen == BASES | ELSEWHERE.keys()
    for file in ELSEWHERE.values():
        assert (ROOT / "tests" / file).is_file()


def test_each_set_of_representatives_uses_what_all_of_its_cases_do() -> None:
    union = set[str]().union
    assert union(*map(used, representatives(METHODS))) == union(*map(used, METHODS))
    assert union(*(of_messages(made(case)[0]) for case in QUICK)) == union(
        *(of_messages(made(case)[0]) for case in PARTIAL)
    )
    rules = {name: of_messages(make()[0]) for name, make in CASES.items()}
    assert union(*(rules[name] for name in quick_messages())) == union(*rules.values())
    assert len(representatives(METHODS)) < len(METHODS) / 2
    assert len(quick()) <= len(CASES) / 2
    assert names(QUICK[0]) == "pfedvem"


class Halved(SampleWeighted):
    """A rule that no method has."""


class Odd(FedAvg):
    """A method with a rule of its own."""

    name = "odd"

    def exchange(self):
        return {name: Halved() for name in super().exchange()}


class Plain(FedPer):
    """A method that is another under a name of its own."""

    name = "plain"


def test_a_new_mechanism_enters_and_a_new_method_of_old_ones_does_not() -> None:
    before = [case_name(case) for case in representatives(METHODS)]
    after = [case_name(case) for case in representatives([*METHODS, (Plain, {}), (Odd, {})])]
    assert [name for name in after if name not in before] == ["odd"]


def test_a_switch_is_a_mechanism() -> None:
    fed = blobs([5, 4])
    plain, other = (
        mechanisms(FedAvg(network_for(FedAvg, fed)), fed), used(next(c for c in METHODS if c[0].name == "fedpop"))
    )  # fmt: skip
    assert any(name.startswith("Langevin.metropolis=") for name in other)
    assert not any(name.startswith("Langevin") for name in plain)


def test_covers_are_small_and_whole() -> None:
    uses = {"a": {1, 2}, "b": {2, 3}, "c": {1, 2, 3}, "d": {4}}
    assert cover(uses) == ["c", "d"]
    assert cover({"a": {1, 2, 3}, "b": {3, 4, 5}, "c": {5, 6, 7}, "d": {1, 2, 5, 6}}) == ["b", "c", "d"]
    assert cover({}) == []
