"""Sites of one's own making: keys, an open policy and approvals for all of them, where no data need protection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import tomli_w

from hierfl.files import write_whole
from hierfl.inference.engines.remote.keys import KEY_FILE, Identity
from hierfl.models import METHODS
from hierfl.responses.registry import RESPONSES
from hierfl.schema import read_toml

from ..roster_keys import SERVER
from .approve import propose
from .home import Home
from .ledger import Ledger
from .policy import POLICY, Policy

#: the server's name, and that of its home
COORDINATOR = "coordinator"
#: refuses nothing that can be sent at all
PERMISSIVE_POLICY = Policy(
    least_rows=1, least_cell=1, least_groups=1, parameters_per_row=1000.0, largest_share=1.0, differing_rows=1,
    least_sites=1, single_messages=True, networks="allow", models="allow", label_counts="allow", points="allow",
    exploration="allow", residuals="allow",
    train_scores=True, largest_epsilon=1000.0, budget=dict.fromkeys((*RESPONSES, *METHODS), 10**9),
)  # fmt: skip


def identity_in(folder: Path, name: str) -> Identity:
    """The keys of a home; made where there are none."""
    if not (folder / KEY_FILE).exists():
        Identity.make(name).save(folder)
    return Identity.load(folder)


def add_cards(study: Path, folder: Path, clients: Iterable[str]) -> Identity:
    """Puts the cards of a server and of its sites into study.toml; the server's keys.

    Args:
        study: the file.
        folder: with a home for the server and for each site.
        clients: the roster.
    """
    server = identity_in(folder / COORDINATOR, COORDINATOR)
    table = read_toml(study, {"clients": [str]})
    table["keys"] = {SERVER: server.card.text}
    table["keys"] |= {name: identity_in(folder / name, name).card.text for name in clients}
    write_whole(study, tomli_w.dumps(table).encode())
    return server


def approve_all(
    study: Path,
    files: Mapping[str, Path],
    folder: Path,
    ledger: Callable[[str], Ledger],
    policy: Policy = PERMISSIVE_POLICY,
) -> None:
    """Approves a study at every site, without looking at what would leave.

    Args:
        study: study.toml, with all cards.
        files: every site's own file.
        folder: with a home for each.
        ledger: of the account of a site.
        policy: of those that have none yet.

    Raises:
        UserError: where a site's rules do not hold.
    """
    server = Identity.load(folder / COORDINATOR).card
    for name, data in files.items():
        home = Home(folder / name)
        if not (home.folder / POLICY).exists():
            write_whole(home.folder / POLICY, policy.text().encode(), mode=0o600)
        propose(home, study, data, pins=[server], ledger=ledger(name)).record("simulated")
