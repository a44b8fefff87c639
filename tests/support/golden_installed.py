"""What is installed: options of its commands, settings of its methods, places of its Python interface."""

from __future__ import annotations

import shlex
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

from golden_names import ATTRIBUTES, COMMANDS, HOMES, OPTIONS, SETTING_VALUES, SETTINGS, VALUES

#: short options of the command line that cases use
SHORT = ("-T", "-J", "-q")


@cache
def found(name: str) -> Any:
    """An object of the installed package, by its old name.

    Raises:
        LookupError: if none of its homes has it.
    """
    for home in HOMES[name]:
        module, _, attribute = home.partition(":")
        try:
            return getattr(import_module(module), attribute or name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"{name} is in none of {', '.join(HOMES[name])}: add where it is now to HOMES")


def attribute(thing: Any, name: str) -> Any:
    """An attribute by its old name."""
    new = ATTRIBUTES.get(name, name)
    return getattr(thing, new if hasattr(thing, new) else name)


@cache
def command(name: str) -> Any:
    """A command of the installed command line; None if there is none of this name."""
    from typer.main import get_command

    return get_command(found("app")).commands.get(name)


@cache
def options(name: str) -> frozenset[str]:
    """Options of a command."""
    known = command(name)
    return frozenset(o for p in known.params for o in (*p.opts, *p.secondary_opts)) if known else frozenset()


@cache
def settings(method: str) -> frozenset[str]:
    """Names of a method's settings; none for a file."""
    methods = found("METHODS")
    if method not in methods:
        return frozenset()
    cls = getattr(import_module(HOMES["METHODS"][0]), methods[method].cls)
    return frozenset(f.name for f in fields(cls.Settings))


def new_setting(method: str, name: str, value: Any, known: frozenset[str] | None = None) -> tuple[str, Any]:
    """A setting under its new name, if that is what is installed; a value in text stays text.

    Args:
        method: whose.
        name, value: the old ones.
        known: names that there are; None asks the installed package.
    """
    known = settings(method) if known is None else known
    for whose in (method, "*"):
        if (whose, name) in SETTINGS and name not in known:
            new, convert = SETTINGS[whose, name]
            if new in known:
                value = SETTING_VALUES.get((whose, name, value), value)
                return new, value if convert is None else convert(value)
    for whose in (method, "*"):
        if (whose, name, value) in SETTING_VALUES:
            return name, SETTING_VALUES[whose, name, value]
    return name, value


def in_text(method: str, name: str, text: str) -> str:
    """KEY=VALUE as it is written on the command line; several values may be separated by commas (a grid's)."""
    found, parts = name, []
    for part in text.split(","):
        found, value = new_setting(method, name, _number(part))
        parts.append(part if value == _number(part) else str(value))  # (as it was written, where it stays what it was)
    return f"{found}={','.join(parts)}"


def _number(text: str) -> Any:
    try:
        return float(text) if any(c in text for c in ".e") else int(text)
    except ValueError:
        return text


def new_words(line: str) -> list[str]:
    """A command line in new names, where the installed package has them."""
    for old, new in COMMANDS.items():
        if line.startswith(f"{old} ") and command(new.split()[0]) is not None:
            line = new + line[len(old) :]
    words = shlex.split(line)
    name, method = words[0], words[1] if len(words) > 1 else ""
    known, found_words, k = options(name), [name], 1
    while k < len(words):
        word = words[k]
        if word == "--set" or (name in ("tune", "search") and "=" in word and not word.startswith("-")):
            pair = words[k + 1] if word == "--set" else word
            key, _, value = pair.partition("=")
            found_words += ["--set"] * (word == "--set") + [in_text(method, key, value)]
            k += 1 + (word == "--set")
            continue
        if word.startswith("--") and word not in known and OPTIONS.get(word) in known:
            found_words.append(OPTIONS[word])
            if k + 1 < len(words) and (word, words[k + 1]) in VALUES:
                found_words.append(VALUES[word, words[k + 1]])
                k += 1
        else:
            found_words.append(word)
        k += 1
    return found_words
