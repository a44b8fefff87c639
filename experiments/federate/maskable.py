"""Which studies can have masked sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.data.formula.design import Design
from hierfl.data.outline import outline_of
from hierfl.errors import UserError
from hierfl.inference.engines.masking import check_maskable
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.exchange import Exchange
from hierfl.nn.networks.build import architecture

from .roster_keys import SERVER

if TYPE_CHECKING:
    from hierfl.inference import Method
    from hierfl.inference.options import Options
    from hierfl.nn.architecture import Architecture

#: networks of the example that a method is made with, and their inputs
EXAMPLES = (("mlp:4", (4,)), ("bncnn:4,4:8", (1, 28, 28)))


def refuse_unmaskable(
    cls: type[Method], settings: Mapping[str, Any], options: Options, clients: Sequence[str], keys: Collection[str],
    path: Path, design: Architecture | None = None,
) -> None:  # fmt: skip
    """Refuses a study with ``masked = true`` that cannot have masked sums.

    What depends on the form of the data is looked at by an example. A method that fits none of the examples is looked
    at when it is approved, and when its study begins.

    Args:
        cls, settings: the method, and its settings.
        options: of the fit; without ``masked`` nothing is refused.
        clients: the roster.
        keys: names of those whose cards are known.
        path: of study.toml, for messages.
        design: what the method is made with, where that is known; None for an example.

    Raises:
        UserError: in one line, with the remedy.
    """
    if not options.masked:
        return
    if lacking := [name for name in (SERVER, *clients) if name not in keys]:
        raise UserError(
            f"{path}: masks need the public card of each, and there is none of {', '.join(lacking)}: add the line of "
            "NAME.pub to the part keys, or draft with --key and --site FILE.pub"
        )
    method = _example(cls, settings) if design is None else cls(design, **settings)
    if method is not None:
        try:
            check_maskable(method, exchange_of(method, options.seed), options, len(clients))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def exchange_of(method: Method, seed: int) -> Exchange:
    """What clients of a method send, in form."""
    shared = method.shared(InitialWeights.for_network(method.network, seed))
    return Exchange(method.exchange(), method.pipeline(), method.expand, {k: v.detach() for k, v in shared.items()})


def _example(cls: type[Method], settings: Mapping[str, Any]) -> Method | None:
    """The method with made-up columns or inputs; None where it fits none of the examples."""
    if is_tabular(cls):
        return cls(Design.from_columns(["Intercept", "x"], ["Intercept", "x"]), **settings)
    for spec, inputs in EXAMPLES:
        try:
            outline = outline_of(inputs, "classification", 3)
            return cls(architecture(spec, outline, latent=cls.latent), **settings)
        except UserError:
            continue
    return None
