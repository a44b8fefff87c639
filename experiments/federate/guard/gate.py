"""What stands before a site: who asks, what was approved, each question once, within a budget.

A question is charged to the account's ledger before anything is computed; its sealed reply is on the disk before it is
visible. After a kill the same question gets the same values, and another one is refused. Of a reason its class leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.inference.engines.remote.masks.question import is_masked, without_masks
from hierfl.inference.engines.remote.masks.site import MaskedSite
from hierfl.inference.engines.remote.points import explores
from hierfl.inference.engines.remote.preparation import ENDED, unnumbered
from hierfl.inference.engines.remote.sealed import open_request, question_digest, sign_again
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.wire import Unreadable, decode, encode, header
from hierfl.inference.state import State

from ..masks import MASK_KINDS, forget_masks, masked_site
from ..study_site import Membership, SiteRows, as_numbers
from .answers import Answers, Slot
from .approval import Approval
from .audit import Audit
from .broadcasts import Broadcasts
from .charges import LARGEST, charge_of, charged, takes_part
from .claims import AccountClaims
from .home import Home
from .in_force import check_in_force, server_of
from .ledger import AnsweredBefore, Ledger, OverBudget
from .noise import charge_noise, note_answered
from .points import budget_of, may_explore
from .policy import Policy
from .replies import Asked, Refused, Replies
from .rows import keep_rows, row_set
from .rules import rules_of_totals
from .slots import HELLO, slot_of
from .totals import Told

log = logging.getLogger("hierfl")


class Gate:
    """A site as its server sees it: sealed requests in, sealed replies out.

    Args:
        home: the site's own folder.
        folder: of the study in it.
        ledger: of this account.
        device: that computes.

    Attributes:
        member: which site of which study this is.
        site: what answers plain requests, once they have come through.
        patient: an error of the disk is raised, so that the caller can ask again.

    Raises:
        UserError: for data that do not fit, or an audit file that is not what it was.
    """

    patient = True

    def __init__(self, home: Home, folder: Path, *, ledger: Ledger | None = None, device: str = "cpu") -> None:
        self.home, self.folder, self.device, self.ledger = home, folder, device, ledger or Ledger()
        self.answers, self.replies = Answers(folder), Replies(home.identity, Audit(home.folder), self.ledger)
        self.replies.heads.check()
        self._load()

    def _load(self) -> None:
        """Takes over what was approved last."""
        self._approval: Approval | None = self.home.approval_of(self.folder)
        self._policy, self._rows = Policy.read(self.home.folder), ""
        self.member = Membership.read(self.folder, finished=False)
        study, plain = self.member.study, self.member.site(self.device, **self._policy.answers)
        claims = AccountClaims(self.ledger, study.digest, self.member.client)
        self.site = masked_site(study, plain, self.home.identity, claims, self._fits)
        self.site.patient = True
        self._broadcasts: Broadcasts | None = None
        self._told = Told(self.folder, study.digest, study.roster)

    @property
    def client(self) -> str:
        """The site's name."""
        return self.member.client

    @property
    def ended(self) -> bool:
        """Whether the study has ended for this site."""
        return self.site.ended

    @property
    def closed(self) -> str:
        """Why the study has ended without this site; empty where it took part to the end."""
        return self.site.closed

    # -- a request ----------------------------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """The sealed reply to a sealed request, as it was carried: an answer, a stored one, or a refusal.

        Returns:
            Bytes that may be seen: what they follow from is on the disk.

        Raises:
            OSError: where the disk cannot hold what has to be kept; nothing is answered then.
            UserError: for an audit file or ledger that is not what it was.
        """
        asked = Asked.unsigned(request)
        refused: Refused | None = None
        try:
            reply = self._answer(asked)
            if self.ended:
                forget_masks(self.folder)
        except Refused as error:
            refused = error
        except (OSError, UserError):
            raise
        except Exception as error:  # a site goes on, whatever a request has done to it
            log.exception("a request could not be answered")
            refused = Refused("failed", type(error).__name__)
        if refused is not None:
            log.warning("a request was refused (%s): %s", refused.about, shown(refused.reason))
            reply = self.replies.refusal(asked, self.member.study, refused)
        self.replies.note(asked, self.member.study, reply, refused)
        return reply

    def _opened(self, asked: Asked) -> tuple[bytes, dict[str, Any], State]:
        """What the server of this study has signed: the plain request, its header, its tensors.

        Raises:
            Refused: for anything else.
        """
        try:
            plain = open_request(asked.request, server_of(self.home, self.member.study), self.client)[0]
            if asked.outer["study"] != self.member.study.digest:
                raise Refused("approval", "it is of another study than the one of this folder")
            head, tensors = decode(plain, LARGEST)
            tensors = {name: value.to(self.device) for name, value in tensors.items()}
        except Unreadable as error:
            raise Refused("signature", str(error)) from error
        return plain, head, tensors

    def _answer(self, asked: Asked) -> bytes:
        plain, head, tensors = self._opened(asked)
        if head.get("kind") == ENDED:  # also a site that has left the roster may hear the end
            with_handshake = {**head, "handshake": self.member.study.handshake.table()}
            return self._computed(asked, encode(with_handshake, tensors))[0]
        self._check_approval(head)
        if head.get("kind") == HELLO:
            self._check_totals(tensors)
            return self._computed(asked, plain)[0]
        asked.slot = slot = slot_of(head)
        if slot is None:
            raise Refused("bounds", "it is no request that this version knows")
        if (stored := self.answers.stored(slot, asked.question)) is not None:
            asked.again = True  # the same bytes, but for a rotated key
            return sign_again(stored, self.home.identity)
        about_masks = slot.kind in MASK_KINDS
        if is_masked(head) and not about_masks:  # with other masks it is the same question, and costs nothing
            bare = without_masks(plain)
            asked.charged, head = question_digest(bare), header(bare)
        site = None if about_masks else self.site.site  # masks are of no rows
        if slot.kind == "prepare":
            self._check_totals(tensors)
        elif site is not None:
            self._check_round(asked.charged, head, slot, tensors)
        elif not about_masks:
            return self._computed(asked, plain)[0]  # it has yet to hear what all have agreed on, and says so
        if not about_masks:
            self._charge(asked, head, slot, tensors)
        if site is not None:  # whether its values fit depends on the rows: it has its price by now
            self._broadcasts_of(site).check(head, tensors, by_rows=not isinstance(self.site, MaskedSite))
        reply, answered = self._computed(asked, plain)
        if answered:
            if site is not None:
                self._broadcasts_of(site).remember(head, tensors)
            self.answers.store(slot, asked.question, reply)
            note_answered(self.ledger, self.member.study, self.client, slot)
            if slot.kind == "round":
                self.answers.forget(slot.round)
        return reply

    def _computed(self, asked: Asked, plain: bytes) -> tuple[bytes, bool]:
        """The sealed answer of the site, and whether it is kept; not where it has other keys, and is asked again.

        Raises:
            Refused: where the site cannot answer.
        """
        answer = self.site.answer(plain)
        head = header(answer)
        if "error" in head and head.get("unprepared") is not True:
            kind = str(head.get("refused") or ("data" if asked.outer["kind"] == "prepare" else "failed"))
            raise Refused(kind, str(head["error"]))
        return self.replies.sealed(asked, self.member.study, answer), not head.keys() & {"error", "rekey"}

    def _check_approval(self, head: Mapping[str, Any]) -> None:
        """Refuses what was not approved as it is now.

        Raises:
            Refused: likewise.
        """
        now = self.home.approval_of(self.folder)
        if now != self._approval:
            try:
                self._load()
            except UserError as error:
                raise Refused("data", str(error)) from error
        check_in_force(now, self.home, self.member, head, self.ledger)
        assert now is not None  # as of the line above
        self._rows = self._rows or row_set(self._data.site_data, self.ledger)
        if self._rows != now.data:
            raise Refused("data", "the rows are not those that were approved")

    @property
    def _data(self) -> SiteRows:
        assert isinstance(self.site.data, SiteRows)  # as of Membership.site
        return self.site.data

    def _check_totals(self, tensors: State) -> None:
        """Sums over all sites: those that were sent first, and such that no rule of the policy fails with them.

        Raises:
            Refused: for others.
        """
        try:
            totals = unnumbered(tensors)
        except Unreadable as error:
            raise Refused("bounds", str(error)) from error
        if not self._told.agrees(totals):
            raise Refused("answered", "its sums over all sites are others than those that were told first")
        if not self._told.is_new(totals):
            return
        self._told.keep(totals, passed=False)
        sums, study = as_numbers(totals), self.member.study
        # A site that joins late was asked for no sums, and its own rows are not in them.
        own = any(c.slot.startswith("prepare") for c in self.ledger.asked(study.digest, self.client))
        judged_rules = rules_of_totals(study, self._data.site_data, self._policy, sums, self.ledger, included=own)
        if failing := [rule for rule in judged_rules if not rule.holds]:
            kind = "bounds" if failing[0].name.startswith("totals") else "policy"
            raise Refused(kind, "; ".join(f"{rule.name}: {rule.margin}" for rule in failing))
        keep_rows(self._data.site_data, self.ledger, sums)
        self._told.keep(totals, passed=True)

    def _check_round(self, question: str, head: Mapping[str, Any], slot: Slot, tensors: State) -> None:
        """Refuses what is past, what the policy forbids, and broadcast values of another form: by nothing of the rows.

        Raises:
            Refused: likewise.
        """
        site = self.site.site
        assert site is not None  # as of the caller
        if slot.round < site.state.round:
            raise Refused("answered", f"round {slot.round} is asked for, and this site is past it")
        asked = self.member.study.digest, self.client, slot.text, question
        if site.state.ended and not self.ledger.has(*asked):  # killed as it ended, it may still have to answer
            raise Refused("answered", "the study has ended for this site")
        train = slot.kind == "scores" and head.get("split") == "train" and takes_part(head, self.member)
        if train and not self._policy.train_scores:
            raise Refused("policy", "scores of training rows are asked for")
        self._broadcasts_of(site).check_form(head, tensors)
        assert self._approval is not None  # as of _check_approval
        if explores(site.method, head, tensors) and not may_explore(self._policy, self._approval.allowed):
            raise Refused("policy", "it explores, and the approval does not allow that")

    def _fits(self, head: Mapping[str, Any], tensors: State) -> bool:
        """Whether values of a question under masks are within bounds: no one else hears which site they do not fit."""
        return self.site.site is None or self._broadcasts_of(self.site.site).fits(head, tensors)

    def _broadcasts_of(self, site: Site) -> Broadcasts:
        if self._broadcasts is None or self._broadcasts.site is not site:
            self._broadcasts = Broadcasts(self.folder, site)
        return self._broadcasts

    def _charge(self, asked: Asked, head: Mapping[str, Any], slot: Slot, tensors: State) -> None:
        """Takes a question up in the ledger, with the points that it costs.

        Raises:
            Refused: where its slot is taken, or the budget is used up.
        """
        assert self._approval is not None  # as of _check_approval
        site, study, allowed, budget = self.site.site, self.member.study, self._approval.allowed, 0
        charge = charge_of(asked.charged, head, slot, tensors, self.member, self._approval.data, site)
        if site is not None:
            try:
                budget = budget_of(study, site.method, site.options, self._policy, allowed)
            except UserError as error:
                raise Refused("budget", str(error)) from error
        try:
            asked.points = charged(self.ledger, charge, budget, study)
        except AnsweredBefore as error:
            raise Refused("answered", str(error)) from error
        except OverBudget as error:
            raise Refused("budget", str(error)) from error
        charge_noise(self.ledger, charge, slot, site, self._policy, len(study.clients))
