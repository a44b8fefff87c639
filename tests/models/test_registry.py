"""The list of methods: read from the sources, without importing anything, and true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hierfl.experiments.methods import load
from hierfl.inference import Method
from hierfl.inference.method.capabilities import reads_columns
from hierfl.models import METHODS
from hierfl.models.registry import STATED, Entry, Registry

ROOT = Path(__file__).parents[2]

CLASS = """class One(Base):
    about = About(
        name="{name}",
        what="what it is",
        paper="Somebody, 2020",
        family="rho -> 0",
        stays="nothing",
        sent="all",
        message_size=None,
        order={order},
    )
"""
#: the form of a class before About
OLD = """class One(Base):
    name = "one"
    about = "what it is"
    family = "rho -> 0"
    order = 1
"""


def test_a_star_gives_the_list_and_every_class() -> None:
    names: dict[str, object] = {}
    exec("from hierfl.models import *", names)
    assert {"METHODS", "PFedVEM", "FedPop", "MixedEffects"} <= names.keys()


def shipped() -> list[type[Method]]:
    """Every class of ours that has a name of its own; one that is made for a user's model is in no list."""
    for name in METHODS:
        load(name)
    classes, left = [], [Method]
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if cls.__module__.startswith("hierfl.models.") and "about" in vars(cls) and not reads_columns(cls):
            classes.append(cls)
    return classes


def test_the_list_is_what_the_classes_say_of_themselves() -> None:
    classes = shipped()
    assert {cls.name for cls in classes} == set(METHODS)
    for cls in classes:
        assert METHODS[cls.name] == Entry(module=cls.__module__, cls=cls.__name__, **vars(cls.about))
        assert cls.name == cls.about.name


def test_the_list_has_an_order() -> None:
    orders = [entry.order for entry in METHODS.values()]
    assert orders == sorted(set(orders))
    assert list(METHODS)[:4] == ["pfedvem", "fedpop", "mixed-effects", "pfedv"]
    assert list(METHODS)[-2:] == ["ditto", "apfl"]


def test_settings_and_grids_are_of_methods_that_there_are() -> None:
    for path in (ROOT / "models/settings").glob("*.toml"):
        assert path.stem in METHODS


def test_the_list_is_there_without_torch() -> None:
    code = "import sys; from hierfl.models import METHODS; print(len(METHODS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(len(METHODS)), "False"]


def test_a_new_file_is_a_new_method(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "one.py").write_text(CLASS.format(name="one", order=2))
    (tmp_path / "zero.py").write_text(CLASS.format(name="zero", order=1))
    (tmp_path / "base.py").write_text("class Base:\n    order = 3\n")
    registry = Registry(tmp_path, "mine")
    assert list(registry) == ["zero", "one"]
    assert registry["one"].module == "mine.inside.one"
    assert registry["one"].message_size is None
    assert registry["one"].text == "what it is (Somebody, 2020)"


@pytest.mark.parametrize("key", STATED)
def test_what_is_inherited_must_be_said_again(key: str, tmp_path: Path) -> None:
    lines = CLASS.format(name="one", order=1).splitlines(keepends=True)
    (tmp_path / "one.py").write_text("".join(line for line in lines if not line.startswith(f"        {key}=")))
    with pytest.raises(TypeError, match=f"the About of mine.one.One must state its {key}, too"):
        list(Registry(tmp_path, "mine"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (OLD, r"mine.one.One states its name as an attribute: write about = About\(name='one', ...\)"),
        (CLASS.format(name="one", order="2 * START"), r"the About of mine.one.One must have plain values by name"),
        ('class One(Base):\n    about = About("one")\n', r"the About of mine.one.One must have plain values by name"),
    ],
    ids=["old form", "computed", "by place"],
)
def test_the_new_form_is_shown(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(source)
    with pytest.raises(TypeError, match=message):
        list(Registry(tmp_path, "mine"))


def test_two_methods_of_one_name(tmp_path: Path) -> None:
    for file in ("a", "b"):
        (tmp_path / f"{file}.py").write_text(CLASS.format(name="one", order=1))
    with pytest.raises(TypeError, match="several classes of mine have the name 'one'"):
        list(Registry(tmp_path, "mine"))
