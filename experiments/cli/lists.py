"""`hierfl methods` and `hierfl datasets`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from .as_json import AsJson, print_json
from .screen import console, text_table


def methods(
    name: Annotated[str, typer.Argument(help="A method, to show its settings and what leaves a client.")] = "",
    leaves: Annotated[
        bool, typer.Option("--leaves", help="What leaves a client, for every method, as a page in markdown.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or one method's settings and messages."""
    from hierfl.inference.method.about import About
    from hierfl.inference.method.capabilities import reads_columns
    from hierfl.models import METHODS

    screen = console()
    if leaves:
        from ..federate.leaving_page import page

        typer.echo(page(), nl=False)
        return
    if as_json and not name:
        shown_parts = ("family", "stays", "sent", "message_size", "text")
        print_json(
            [
                {"method": key, **{part: getattr(entry_of_method, part) for part in shown_parts}}
                for key, entry_of_method in METHODS.items()
            ]
        )
        return
    if not name:
        wide = screen.width >= WIDE_SCREEN
        table = text_table("method", "family", "stays", "is sent", "size", *(["what it is"] if wide else []))
        for key, entry in METHODS.items():
            size = "" if entry.message_size is None else f"{entry.message_size:g}"
            texts = [entry.text] if wide else []
            table.add_row(key, entry.family, entry.stays, entry.sent, size, *texts)
        screen.print(table)
        screen.print("size: of a message, FedAvg's being 1, for mlp:100 on 28x28 images of ten classes", soft_wrap=True)
        screen.print("hierfl methods NAME says what a method is, its settings, and what leaves a client")
        return
    from ..methods import all_shipped, describe, load

    table = text_table("setting", "default", "meaning")
    loaded = load(name)
    if as_json:
        settings = [dict(zip(("setting", "default", "meaning"), row, strict=True)) for row in describe(loaded.cls)]
        print_json({"method": loaded.name, "settings": settings, "shipped": all_shipped(loaded.name)})
        return
    stated = METHODS.get(name) or vars(loaded.cls).get("about")
    if isinstance(stated, About):  # of a file of one's own what it states
        screen.print(f"{loaded.name}: {'; '.join(filter(None, (stated.text, stated.family)))}", soft_wrap=True)
        parts = {"stays with a client": stated.stays, "is sent": stated.sent}
        if parts := {what: value for what, value in parts.items() if value}:
            screen.print("; ".join(f"{what}: {value}" for what, value in parts.items()), soft_wrap=True)
    for row in describe(loaded.cls):
        table.add_row(*row)
    screen.print(table)
    for data, chosen in all_shipped(loaded.name).items():
        screen.print(f"on {data}: {', '.join(f'{k}={v}' for k, v in chosen.items())}", soft_wrap=True)
    if reads_columns(loaded.cls):
        screen.print(f"\nwhat leaves a client: {OF_A_MODEL}", soft_wrap=True)
        return
    from ..federate.leaving_page import example

    where, values = example(loaded)
    screen.print(f"\nwhat leaves a client, {where}:", soft_wrap=True)
    table = text_table("answers", "value", "shape", "what it is")
    for value in values:
        table.add_row(value.request, value.name, value.dimensions, value.meaning)
    screen.print(table)


#: what leaves a client of a plain model, whose numbers are the model's
OF_A_MODEL = (
    "for p global numbers of the model, sums of p + p (p + 1) / 2 numbers and a few more in a round; in the rounds of "
    "the exploration one number for each point that is asked"
)
#: columns of a screen on which methods are said in words, too
WIDE_SCREEN = 140


def datasets(as_json: AsJson = False) -> None:
    """List the data sets, the ways of splitting them, and the networks."""
    from hierfl.data.datasets.registry import DATASETS
    from hierfl.data.npz import ARRAYS
    from hierfl.data.partition.registry import SPLITS
    from hierfl.data.tables import TABLES
    from hierfl.nn.networks.registry import NETWORKS

    if as_json:
        usual = ("about", "clients", "split", "rounds", "network")
        print_json({
            "data sets": {name: {part: getattr(item, part) for part in usual} for name, item in DATASETS.items()},
            "tables": {name: {"about": item.about, "formula": item.formula} for name, item in TABLES.items()},
            "splits": {name: {"parameter": item.parameter, "about": item.about} for name, item in SPLITS.items()},
            "networks": dict(NETWORKS),
        })  # fmt: skip
        return
    screen = console()
    table = text_table("data set", "what it is", "by default")
    for name, entry in DATASETS.items():
        description = f"{entry.clients} clients, {entry.split}, {entry.rounds} rounds, {entry.network}"
        table.add_row(name, entry.about, description)
    table.add_row("FILE.npz", f"your own: {', '.join(ARRAYS)}", "say --clients and --split")
    screen.print(table)
    table = text_table("table", "what it is", "by default")
    for name, entry_of_table in TABLES.items():
        table.add_row(name, entry_of_table.about, entry_of_table.formula)
    table.add_row("FILE.csv", "your own, with a header", "say --formula, or --group and --y")
    screen.print(table)
    table = text_table("split", "what a client gets")
    for name, kind in SPLITS.items():
        table.add_row(f"{name}:{kind.parameter}" if kind.parameter else name, kind.about)
    screen.print(table)
    table = text_table("network", "what comes before the head")
    for name, description in NETWORKS.items():
        table.add_row(name, description)
    screen.print(table)
