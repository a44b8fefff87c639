"""Masks of a study: which sums open how, and both ends of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hierfl.errors import UserError
from hierfl.files import sync_folder
from hierfl.inference.engines.remote.keys import PublicCard
from hierfl.inference.engines.remote.masks.groups import FEWEST
from hierfl.inference.engines.remote.masks.parts import KEYS, OPEN, SHARES, SIGN, Mode
from hierfl.inference.engines.remote.masks.server import MaskedSums
from hierfl.inference.engines.remote.masks.site import MaskedSite
from hierfl.inference.engines.remote.own_part import Contributing, Fits
from hierfl.inference.engines.remote.refusals import OF_ALL
from hierfl.inference.method.capabilities import needs_everyone

if TYPE_CHECKING:
    from hierfl.inference.engines.remote.keys import Identity
    from hierfl.inference.engines.remote.masks.claims import Claims
    from hierfl.inference.engines.remote.preparation import PreparedSite
    from hierfl.inference.engines.remote.questions import Questions

    from .study import Study

#: of a site's folder of a study, and of a server's
MASKS = "masks"
#: kinds of requests that a study without masks does not have
MASK_KINDS = (KEYS, SHARES, SIGN, OPEN)


def mode_of(study: Study) -> Mode:
    """Whether sums of rounds and scores open with the answers of all sites, or of those who were signed for."""
    everyone = needs_everyone(study.loaded.cls) or study.options("cpu").quorum >= len(study.clients)
    return "whole" if everyone else "shares"


def summed_over(study: Study) -> int:
    """The least number of sites in a sum where all answer: those of the smallest group; 0 without masks."""
    options = study.options("cpu")
    return len(study.clients) // max(options.mask_groups, 1) if options.masked else 0


def of_all(study: Study) -> frozenset[str]:
    """Kinds of requests that count only with the answers of all sites."""
    kinds = set(OF_ALL)
    if needs_everyone(study.loaded.cls):
        kinds |= {"round"}
    if study.options("cpu").masked:
        kinds |= {KEYS, SHARES} | ({"round", "scores"} if mode_of(study) == "whole" else set())
    return frozenset(kinds)


def cards_of(study: Study) -> Mapping[str, PublicCard]:
    """The cards of all clients on the roster."""
    return {name: study.keys[name] for name in study.clients}


def masked_site(
    study: Study, site: PreparedSite, identity: Identity | None, claims: Claims | None = None, fits: Fits | None = None
) -> PreparedSite | MaskedSite:
    """A site of a study as its server may ask it: behind masks, where the study has them.

    Args:
        study: what was agreed on.
        site: that answers plain requests.
        identity: the site's keys.
        claims: where it is kept what was answered under masks; None for the site's own folder.
        fits: whether broadcast values are within bounds; None where no one asks.

    Raises:
        UserError: of a study with masks, for a site without keys, or with others than those of the roster.
    """
    options = study.options("cpu")
    if not options.masked:
        return site
    if identity is None:
        raise UserError(f"{study.name} has masks, and {site.desk.client} no keys: hierfl federate keys makes them")
    return MaskedSite(
        site, identity, cards_of(study), site.folder / MASKS, Contributing(site, len(study.clients), fits),
        mode=mode_of(study), quorum=max(options.quorum, FEWEST), groups=options.mask_groups, claims=claims,
    )  # fmt: skip


def forget_masks(folder: Path) -> None:
    """Deletes a site's keys of masks; what they were used for stays on record in the account's ledger.

    Args:
        folder: of the study at the site.
    """
    if (folder / MASKS).is_dir():
        shutil.rmtree(folder / MASKS)
        sync_folder(folder)


def masked_sums(study: Study, questions: Questions, folder: Path) -> MaskedSums | None:
    """What asks for masked sums; None of a study without masks.

    Args:
        study: what was agreed on.
        questions: asks the sites.
        folder: the server's own.

    Raises:
        UserError: as :class:`~hierfl.inference.engines.remote.masks.server.MaskedSums`.
    """
    options = study.options("cpu")
    if not options.masked:
        return None
    return MaskedSums(
        questions, cards_of(study), folder / MASKS, mode=mode_of(study), quorum=max(options.quorum, FEWEST),
        groups=options.mask_groups,
    )  # fmt: skip
