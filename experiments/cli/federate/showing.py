"""What commands of a study show: values that would leave, rules, and who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hierfl.files import shown

from ..screen import console, text_table

if TYPE_CHECKING:
    from hierfl.data.disclosure.rule import Rule

    from ...federate.guard.approve import Party
    from ...federate.leaving import Leaving


def show_leaving(values: Sequence[Leaving], sites: int = 0) -> None:
    """Prints every value that would leave a site.

    Args:
        values: in the order of the requests.
        sites: of a study with masks, over how many sites each sum is; 0 without masks.
    """
    screen = console()
    if sites:
        screen.print(
            f"This would leave the site under masks, and nothing else. Alone each number is noise. The server gets "
            f"sums over {sites} sites."
        )
    else:
        screen.print("This would leave the site, and nothing else:")
    for request, group in groupby(values, key=lambda value: value.request):
        table, last_meaning = text_table("", "value", "shape", "bytes", "what it is"), ""
        for value in group:
            table.add_row(
                "",
                value.name,
                value.dimensions,
                f"{value.nbytes:,}",
                "" if value.meaning == last_meaning else value.meaning,
            )
            last_meaning = value.meaning
        screen.print(f"\n{request}")
        screen.print(table)


def show_rules(rules: Sequence[Rule]) -> None:
    """Prints each rule of the site's policy, and how far the study is from it."""
    table = text_table("rule", "", "margin")
    for rule in rules:
        table.add_row(rule.name, "holds" if rule.holds else "FAILS", shown(rule.margin))
    console().print(table)


def show_parties(several: Sequence[Party]) -> None:
    """Prints who takes part, by which keys, and whether they were pinned here."""
    table = text_table("takes part", "fingerprint", "card")
    for row in parties(several):
        who = f"server: {row['name']}" if row["server"] else row["name"]
        table.add_row(who, row["fingerprint"] or "-", "pinned" if row["pinned"] else "not pinned")
    console().print(table)


def parties(several: Sequence[Party]) -> list[dict[str, Any]]:
    """Who takes part: name, whether it is the server, the fingerprint of its card, and whether that was pinned."""
    return [
        {
            "name": party.name if party.card is None else party.card.name, "server": party.name == "server",
            "fingerprint": party.card.fingerprint if party.card else None, "pinned": party.pinned,
        }
        for party in several
    ]  # fmt: skip
