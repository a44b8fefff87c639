"""Checks of what fit() is called with."""

from __future__ import annotations

from pathlib import Path

from hierfl.data.federation import Federation
from hierfl.errors import UserError

from ..method.base import Method


def check_fitted(method: object, federation: object) -> None:
    """Refuses arguments of fit() that are in each other's place, or something else.

    Raises:
        UserError: for what is no method, or no federation.
    """
    if isinstance(method, Federation) and isinstance(federation, Method):
        raise UserError("fit takes the method first: fit(method, federation)")
    if isinstance(method, type) and issubclass(method, Method):
        name = method.__name__
        raise UserError(f"{name} is a class: fit({name}(architecture('mlp:100', federation)), federation)")
    if not isinstance(method, Method):
        raise UserError(f"fit takes a method made with a network, such as PFedVEM(network), not {method!r}")
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise UserError(f"fit takes a Federation, such as Federation.from_arrays(x, y, client), not {kind}")


def folder_of(folder: object) -> Path | None:
    """A folder by its name or path.

    Raises:
        UserError: for another object.
    """
    if folder is None:
        return None
    if isinstance(folder, str | Path):
        if (path := Path(folder).expanduser()).exists() and not path.is_dir():
            raise UserError(f"folder is {str(path)!r}, which is a file: name another one")
        return path
    raise UserError(f"folder is a name or path, such as 'runs/first', not {folder!r}")
