"""What makes two runs runs of one setting."""

from __future__ import annotations

from typing import Any

from hierfl.inference.method.settings import applicable, make_settings

from ..config import Configuration
from ..methods import known_class


def setting_of(config: Configuration) -> dict[str, dict[str, Any]]:
    """What a run was, no matter who ran it: its configuration without what is its own, tables "run" and "settings".

    A setting that is newer than the run had its default, and what changes nothing beside the others is left out.
    """
    run, cls = config.run.identity(), known_class(config.run.as_table())
    if cls is None:  # somebody's own file, which is not run for this: as the configuration has them
        return {"run": run, "settings": dict(config.settings)}
    settings = make_settings(cls, applicable(cls, config.settings))
    return {"run": run, "settings": {k: getattr(settings, k) for k in settings.__dataclass_fields__}}
