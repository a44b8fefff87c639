"""All keys of a folder: those of hierfl, and those of Flower's node."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole
from hierfl.inference.engines.remote.keys import KEY_FILE, Identity

#: of Flower's node
NODE_KEY, NODE_PUBLIC = "node.key", "node.pub"


def write_keys(home: Path, name: str, *, rotate: bool = False) -> Identity:
    """Makes the keys of a server or a site, and those of its node where it has none.

    Args:
        home: its folder.
        name: its own.
        rotate: whether its keys are moved aside, and new ones made; its node keeps its own.

    Raises:
        UserError: where there are keys that are not to be rotated, none to rotate, or those of another name.
    """
    made = Identity.make(name)
    if rotate and (present := Identity.load(home)).name != name:
        raise UserError(f"{home / KEY_FILE} is the key of {present.name}, not of {name}")
    made.save(home, rotate=rotate)
    if not (home / NODE_KEY).exists():
        write_node_keys(home)
    return made


def write_node_keys(folder: Path) -> Path:
    """A key pair of a site's node of Flower; the public one, which goes to the coordinator."""
    make_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
    none = serialization.NoEncryption()
    write_whole(folder / NODE_KEY, key.private_bytes(serialization.Encoding.PEM, form[0], none), mode=0o600)
    write_whole(folder / NODE_PUBLIC, key.public_key().public_bytes(serialization.Encoding.OpenSSH, form[1]))
    return folder / NODE_PUBLIC
