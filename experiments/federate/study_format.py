"""What is in study.toml, and which formats of it this version reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.schema import AnyOf, Number, Schema

#: of the file; 2: with keys
FORMAT = 2
#: of files whose studies can have ended: they are read for what is in their folders
EARLIER = 1
STUDY: Schema = {
    "format": Number(int), "name": str, "method": str, "model?": str, "method_digest": str, "clients": [str],
    "keys?": {"*": str}, "settings": {"*": AnyOf(Number(), str, bool)}, "run": dict, "data": dict,
    "columns?": {"*": dict},
    "privacy": {
        "new_clients": bool, "least_rows": Number(int, 1), "most_rows?": Number(int, 1), "masked?": bool,
        "mask_groups?": Number(int, 0), "robust?": str, "dp?": str, "epsilon?": Number(float, 0),
        "delta?": Number(float, 0, 1), "clip?": Number(float, 0), "patient_rows?": Number(int, 1), "patient?": str,
        "usual_rows?": Number(int, 1),
    },
}  # fmt: skip
#: options of a fit that study.toml has in its part "privacy", where it says more than the default
PRIVACY = ("masked", "mask_groups", "robust", "dp", "epsilon", "delta", "clip", "patient_rows", "usual_rows")
#: of a network: a client's own part of it, and the file beside study.toml whose weights it begins with
HEAD: Schema = {"head?": str, "weights_file?": str, "weights_digest?": str}
#: the table "data" of each kind of site's file, beside "kind"
DATA: dict[str, Schema] = {
    "formula": {
        "formula": str, "family": str, "known_se": str, "event?": str, "weights?": str, "precision_weights?": str,
        "correlation?": str, "na?": str, "spellings?": str,
        "test_fraction": Number(float, 0, 1),
        "validation_fraction": Number(float, 0, 1),
    },
    "columns": {
        "x": [str], "y": str, "network": str, "response_sd": Number(), "learn_sd?": str, **HEAD,
        "test_fraction": Number(float, 0, 1), "validation_fraction": Number(float, 0, 1), "spellings?": str,
    },
    "arrays": {
        "inputs": [Number(int, 1)], "images": bool, "classes": Number(int, 0), "network": str,
        "response_sd": Number(), "learn_sd?": str, "validation_fraction": Number(float, 0, 1), **HEAD,
    },
    "model": {"na?": str, "spellings?": str},
}  # fmt: skip


def check_format(table: Mapping[str, Any], path: Path, finished: bool) -> None:
    """Refuses a file of another version.

    Raises:
        UserError: for one, with what can be done.
    """
    version = table["format"]
    if version == EARLIER and not finished:
        raise UserError(
            f"{path} is of format {EARLIER}, without keys: finish this study with the version of hierfl that began it, "
            "or draft it again (hierfl federate study)"
        )
    if version not in (EARLIER, FORMAT):
        raise UserError(f"{path} is of format {version}, and this version of hierfl reads {FORMAT}")
    if (version == FORMAT) != ("keys" in table):
        raise UserError(f"{path}: format {FORMAT} has the part keys, and format {EARLIER} has none")


def refuse_strange(table: Mapping[str, Any], schema: Schema, path: Path) -> None:
    """An entry that says nothing is a mistake in one that does.

    Raises:
        UserError: for one.
    """
    names = {name.removesuffix("?") for name in schema}
    if strange := sorted(table.keys() - names):
        raise unknown(f"entry of {path}:", strange[0], sorted(names))
