"""A site's rows in the account's ledger."""

from __future__ import annotations

from collections.abc import Sequence

from hierfl.data.disclosure.row_hashes import least_difference, row_hashes, same_data
from hierfl.data.federated.study_data import SiteData
from hierfl.data.federated.sums import NamedSums

from .ledger import Ledger, name_of


def row_set(data: SiteData, ledger: Ledger) -> str:
    """The name of a row set, whether the ledger has it or not."""
    return name_of(row_hashes(data, ledger.secret))


def keep_rows(data: SiteData, ledger: Ledger) -> str:
    """Keeps a row set in the ledger; its name."""
    return ledger.add_rows(row_hashes(data, ledger.secret), same_data)


def differs_too_little(data: SiteData, ledger: Ledger, totals: Sequence[NamedSums], least: int) -> bool:
    """Whether a condition selects, with these sums over all sites, nearly the rows of an earlier study's; where not,
    the ledger keeps what it selects.

    Args:
        data: the site's rows, read for a study.
        ledger: of the account.
        totals: sums over all sites.
        least: rows by which two sets differ at least.
    """
    hashes = row_hashes(data, ledger.secret, totals)
    if hashes.keys() == row_hashes(data, ledger.secret).keys():
        return False
    found = [least_difference(hashes, held) for held in ledger.row_sets().values()]
    if any(rows is not None and rows < least for rows in found):
        return True
    ledger.add_rows(hashes, same_data)
    return False


def used(data: SiteData, ledger: Ledger) -> int:
    """Points that were evaluated on these rows, or on others that have most of them."""
    hashes = row_hashes(data, ledger.secret)
    return ledger.used(next((name for name, held in ledger.row_sets().items() if same_data(hashes, held)), ""))
