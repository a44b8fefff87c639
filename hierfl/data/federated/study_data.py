"""What the files of a study's sites are, whichever kind they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...nn.architecture import Architecture
from ..federation import Federation
from ..reading.options import Reading
from .sums import NamedSums


class SiteData(Protocol):
    """One site's file, read and checked."""

    @property
    def rows(self) -> int:
        """How many rows the sums are of."""
        ...

    @property
    def left_out(self) -> int:
        """How many rows are not in them, for want of a value."""
        ...

    @property
    def beyond(self) -> int:
        """How many rows do not count, beyond the first ones of their patients."""
        ...

    def digest(self) -> str:
        """A fingerprint of its rows."""
        ...

    def sums(self, before: Sequence[NamedSums]) -> dict[str, Any]:
        """Its part of round ``len(before)`` of the preparation, given the sums over all sites of those before."""
        ...

    def federation(self, totals: Sequence[NamedSums]) -> Federation:
        """Its data as a federation of one client, given the sums over all sites."""
        ...


class StudyData(Protocol):
    """What all sites' files have in common."""

    @property
    def steps(self) -> int:
        """How many rounds of sums come before the first round of the fit."""
        ...

    def form(self, before: Sequence[NamedSums]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the sums of round ``len(before)``."""
        ...

    def declared_rows(self, step: int, sums: Mapping[str, Any]) -> float | None:
        """How many rows a site's sums of a step are of; None where they do not say it."""
        ...

    def summed_columns(self, step: int) -> Mapping[str, Sequence[str]]:
        """The columns of which a step has "n", "total" and "square", by the prefix of these names."""
        ...

    def meanings(self) -> Mapping[str, str]:
        """What each of these sums is, in words."""
        ...

    def site(self, path: Path, client: str, reading: Reading | None = None) -> SiteData:
        """A site's own file.

        Args:
            path: of the file.
            client: the site's name.
            reading: what a table's file does not say of itself.

        Raises:
            UserError: in one line that holds none of its values, where it is not what all have agreed on.
        """
        ...

    def model(self, totals: Sequence[NamedSums], latent: bool) -> tuple[Federation, Architecture]:
        """What is known of all clients' data, without any, and what a method is made with.

        Args:
            totals: the sums over all sites.
            latent: whether the network has latent features.

        Raises:
            UserError: where nothing could be fitted to such data.
        """
        ...

    def form_model(self, site: SiteData, latent: bool) -> tuple[Federation, Architecture]:
        """The same as :meth:`model` for names and shapes alone, from one site's sums: before anybody has sent any."""
        ...

    def own_network(self, network: Architecture, federation: Federation) -> Architecture:
        """What a site's method is made with: it knows more of its own data than all sites together do."""
        ...

    def inputs(self, path: Path, federation: Federation, reading: Reading | None = None) -> Any:
        """A file of new examples to predict for; see :meth:`site`."""
        ...
