"""A site's rows in the account's ledger."""

from __future__ import annotations

from collections.abc import Sequence

from hierfl.data.disclosure.row_hashes import row_hashes, same_data
from hierfl.data.federated.study_data import SiteData
from hierfl.data.federated.sums import NamedSums

from .ledger import Ledger, name_of


def row_set(data: SiteData, ledger: Ledger) -> str:
    """The name of a row set, whether the ledger has it or not."""
    return name_of(row_hashes(data, ledger.secret))


def keep_rows(data: SiteData, ledger: Ledger, totals: Sequence[NamedSums] = ()) -> str:
    """Keeps a row set in the ledger, with the rows that conditions select; its name.

    Args:
        data: the site's rows, read for a study.
        ledger: of the account.
        totals: sums over all sites, once they are known: conditions on centred columns select rows by them.
    """
    return ledger.add_rows(row_hashes(data, ledger.secret, totals), same_data)


def used(data: SiteData, ledger: Ledger) -> int:
    """Points that were evaluated on these rows, and on all others that share most of them."""
    return ledger.used_of(ledger.budgets_shared(row_hashes(data, ledger.secret), same_data))
