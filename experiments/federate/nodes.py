"""Which of Flower's nodes is which site: what was registered, never what a node says."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from hierfl.errors import UserError
from hierfl.files import write_whole
from hierfl.schema import read_toml

#: beside study.toml, at the coordinator
NODES = "nodes.toml"


def read_nodes(study: Path) -> dict[str, int]:
    """{client: node}; empty where none was registered.

    Raises:
        UserError: for a damaged file, or one node for two sites.
    """
    path = study.with_name(NODES)
    if not path.is_file():
        return {}
    nodes = {name: int(node) for name, node in read_toml(path, {"nodes": {"*": str}})["nodes"].items()}
    if len(set(nodes.values())) < len(nodes):
        raise UserError(f"{path} is damaged: one node is two sites")
    return nodes


def write_nodes(study: Path, nodes: dict[str, int]) -> None:
    """Writes them; numbers as text, since toml's do not hold 64 bits without a sign."""
    table = {"nodes": {name: str(node) for name, node in nodes.items()}}
    write_whole(study.with_name(NODES), tomli_w.dumps(table).encode())
