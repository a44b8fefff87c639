"""A site's rows in the account's ledger."""

from __future__ import annotations

from hierfl.data.disclosure.row_hashes import row_hashes, same_data
from hierfl.data.federated.study_data import SiteData

from .ledger import Ledger, name_of


def row_set(data: SiteData, ledger: Ledger) -> str:
    """The name of a row set, whether the ledger has it or not."""
    return name_of(row_hashes(data, ledger.secret))


def keep_rows(data: SiteData, ledger: Ledger) -> str:
    """Keeps a row set in the ledger; its name."""
    return ledger.add_rows(row_hashes(data, ledger.secret), same_data)
