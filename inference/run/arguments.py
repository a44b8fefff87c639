"""Checks of what fit() is called with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.errors import UserError

from ..method.base import Method
from ..method.initial import InitialWeights
from ..state import State


def check_fitted(method: object, federation: object) -> None:
    """Refuses arguments of fit() that are exchanged, or something else.

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
    for part in ("local", "exchange", "pipeline", "schedule"):
        if getattr(method, part)() is None:
            raise UserError(f"{type(method).__name__}.{part}() returns nothing: end it with a return")
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise UserError(f"fit takes a Federation, such as Federation.from_arrays(x, y, client), not {kind}")


def initial_values(method: Method, start: InitialWeights) -> tuple[State, State]:
    """What a method declares, shared and personal.

    Raises:
        UserError: for a method that returns no values.
    """
    for part, values in (declared := {"shared": method.shared(start), "personal": method.personal(start)}).items():
        if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
            raise UserError(f"{type(method).__name__}.{part}() returns {{name: tensor}}, not {_shown(values)}")
    return declared["shared"], declared["personal"]


def _shown(values: object) -> str:
    if not isinstance(values, Mapping):
        return type(values).__name__
    name, value = next((name, value) for name, value in values.items() if not isinstance(value, Tensor))
    return f"{type(value).__name__} as {name!r}"


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


def check_values(method: Method, shared: State, personal: State) -> None:
    """Refuses initial values that cannot be.

    Args:
        method: whose.
        shared, personal: what server and clients begin with.

    Raises:
        UserError: for a value that is both, a reply that is none, or numbers that are not finite.
    """
    both = shared.keys() & personal.keys()
    if both:
        raise UserError(f"{sorted(both)[0]!r} is declared both shared and personal")
    if strange := set(method.replies) - personal.keys():
        raise UserError(f"the method's replies name {sorted(strange)[0]!r}, which personal() does not declare")
    for name, value in {**shared, **personal}.items():
        if not bool(value.isfinite().all()):
            raise UserError(f"the initial value of {name!r} is not finite in {value.dtype}")
