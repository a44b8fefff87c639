"""Settings inside files: config.toml, checkpoint.json, and what searches and tables say of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from golden_installed import new_setting
from golden_names import SETTINGS

#: keys that end in a setting's name, in any file: "settings.beta", "fit.settings.beta", "0.setting.settings.beta"
_KEY = re.compile(r"(.*settings?\.)([^.]+)")


def renamed_settings(file: Path, one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """The old file's values with settings under the names that the new file has."""
    if not SETTINGS:
        return one
    found = {}
    for key, value in one.items():
        if (match := _KEY.fullmatch(key)) and key not in two:
            start, name = match.groups()
            known = frozenset(k.removeprefix(start) for k in two if k.startswith(start))
            for method in _methods(file, one):
                new, changed = _changed(method, name, value, known)
                if new != name:
                    key, value = start + new, changed
                    break
        found[key] = value
    return found


def _changed(method: str, name: str, value: Any, known: frozenset[str]) -> tuple[str, Any]:
    """A checkpoint holds values as Python writes them, other files as they are."""
    if not isinstance(value, str):
        return new_setting(method, name, value, known)
    try:
        inner = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return new_setting(method, name, value, known)
    new, changed = new_setting(method, name, inner, known)
    return new, repr(changed)


def _methods(file: Path, values: dict[str, Any]) -> list[str]:
    """Methods that a file may be about: those that it or its folder's config.toml name, else all of SETTINGS."""
    said = [v for k, v in values.items() if k.split(".")[-1] == "method" and isinstance(v, str)]
    said += [folder.name for folder in [*file.parents][:3]]  # (what Python leaves has no config.toml; cases have names)
    for folder in (file.parent, file.parent.parent):
        config = folder / "config.toml"
        if config.is_file() and (match := re.search(r'^method = "(.*)"$', config.read_text(), re.M)):
            said.append(match[1])
    named = {method for method, _ in SETTINGS}
    return [m for m in said if m in named] + ["*"] if any(m in named for m in said) else ["*", *sorted(named - {"*"})]
