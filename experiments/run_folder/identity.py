"""What makes two runs runs of one setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.inference.method import applicable, make_settings

from ..methods import known_class

#: what may differ between runs of one setting: the seed, and where and by what words it was run
PRIVATE = (
    "seed", "redraws", "data_root", "method_digest", "device", "chunk", "settings_chosen", "observed_data",
    "federation",
)  # fmt: skip


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was, whoever ran it where: its configuration without what is its own.

    A setting that is newer than the run had its default, and what changes nothing beside the others is left out.
    """
    told = {k: v for k, v in config["run"].items() if k not in PRIVATE}
    cls = known_class(config["run"])
    if cls is None:  # (somebody's own file, which is not run for this: as the configuration has them)
        return {"run": told, "settings": dict(config["settings"])}
    settings = make_settings(cls, applicable(cls, config["settings"]))
    return {"run": told, "settings": {k: getattr(settings, k) for k in settings.__dataclass_fields__}}
