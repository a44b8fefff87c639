"""The distributed engine: clients shared by ranks (torchrun), a plate on each, sums over all of them.

Every rank runs the same fit: it has the same shared values and draws the same participants, and holds the data in use
and the personal rows of its own clients. Results are those of one plate, up to the order of a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.metrics.classification import BINS
from hierfl.metrics.pooling import MetricSums
from hierfl.metrics.registry import client_metrics

from ..calibration.answer import Answer
from ..calibration.question import Question
from ..evaluation.fitted import Fitted, Population
from ..evaluation.global_model import evaluate_global
from ..evaluation.personal import evaluate_personal
from ..messages.singles import Singles
from ..messages.sums import Sums
from ..method.base import Method
from ..method.schedule import Plan
from ..options import Options
from ..server.exchange import Exchange
from ..server.robust.watch import collects
from ..state import State, StateForm
from .base import Broadcast, Reports, Scores
from .fixed import answer_digits, answer_sums, decoded, encoded, made_scores, unmarked
from .groups import Collected, reports_of
from .masking import check_enough, check_maskable, client_groups
from .plate import PlateEngine
from .ranks import Ranks, local_device, shards
from .remote.wire import flat_answer


class DistributedEngine:
    """See :class:`~hierfl.inference.engines.base.Engine`.

    Args:
        method: whose clients.
        federation: all of them; each rank keeps the rows of its own.
        options: of the fit; a device "cuda" is one for each rank.

    Raises:
        UserError: for fewer clients, or devices, than ranks.
    """

    every_round = False

    def __init__(self, method: Method, federation: Federation, options: Options) -> None:
        device = local_device(options.device)
        self.method, self.federation, self.options = method, federation, options
        self.ranks = Ranks(device)
        self.ids, self.task, self.device = federation.ids, federation.task, device
        self.leads = self.ranks.rank == 0
        self.shards = shards(federation.sizes(), federation.ids, self.ranks.size)
        self.index = torch.tensor(self.shards[self.ranks.rank])
        self._place = {j: row for row, j in enumerate(self.shards[self.ranks.rank])}
        own = federation.select(self.shards[self.ranks.rank])
        self.plate = PlateEngine(method, own, replace(options, device=str(device)), everyone=federation.clients)

    def agree(self, wish: bool) -> bool:
        """What the first rank wishes."""
        return self.ranks.agree(wish)

    def template(self) -> Batch:
        """One row without data."""
        return self.plate.template()

    def has_data(self, split: str) -> bool:
        """Whether any of all clients has examples."""
        return any(self.federation.sizes(split))

    def digest(self) -> str:
        """A fingerprint of all data and the split."""
        return self.federation.digest()

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        if exchange.individual:
            group = exchange.individual[0]
            raise UserError(
                f"the messages of {group!r} are looked at one by one, and ranks send sums: take engine plate"
            )
        if self.method.replies:
            name = self.method.replies[0]
            raise UserError(f"the server makes each client's {name!r}, and ranks hear one broadcast: take engine plate")
        check_maskable(self.method, exchange, self.options, len(self.ids))
        self.exchange = exchange
        self.plate.groups = [set(self._mine(group)) for group in client_groups(self.ids, self.options)]
        self.plate.begin(shared, initial, exchange)

    def _for_this_rank(self, broadcast: Broadcast) -> Broadcast:
        """What concerns this rank's clients."""
        used = broadcast.used
        return replace(broadcast, used=None if used is None else used[self.index.to(used.device)])

    def _mine(self, clients: Iterable[int]) -> list[int]:
        return [self._place[j] for j in clients if j in self._place]

    def round(self, broadcast: Broadcast, plan: Plan) -> Reports:
        """See :class:`~hierfl.inference.engines.base.Engine`: one reduction for each type of number."""
        mine = Plan(self._mine(plan.reporting), self._mine(plan.training))
        own, clients = self.plate.collected(self._for_this_rank(broadcast), mine), len(self.ids)
        numbers = {
            "\0status": self.ranks.scatter(own.status.long(), self.index, clients),
            "\0who": self.ranks.scatter(own.diverged.long(), self.index, clients),
        }
        for group, sums in enumerate(own.groups):
            numbers |= self._numbers(str(group), sums)
        added = self.ranks.sum(numbers)
        groups = [self._sums(str(group), added) for group in range(len(own.groups))]
        status, who = added["\0status"].to(torch.uint8), added["\0who"].bool()
        reports = Collected(groups, status, who, self._collected(own.singles))
        return reports_of(reports, self.exchange, self.options, client_groups(self.ids, self.options), clients)

    def _numbers(self, prefix: str, sums: Sums) -> State:
        """A group's sums by name: those of no message are zeros."""
        counts = {
            "reported": sums.reported, "diverged": sums.diverged, "bytes": torch.tensor(sums.bytes, device=self.device)
        }  # fmt: skip
        totals = {
            f"{prefix}\0{group}\0{key}": sums.totals[group][key] if group in sums.totals else nothing
            for group, form in self._nothing().items()
            for key, nothing in form.items()
        }
        return {**{f"{prefix}\0\0{k}": v for k, v in counts.items()}, **totals}

    def _sums(self, prefix: str, numbers: Mapping[str, Tensor]) -> Sums:
        """Undoes :meth:`_numbers`."""
        both: dict[str, State] = {}
        for name, value in numbers.items():
            where, _, rest = name.partition("\0")
            if where == prefix and "\0" in rest:
                group, _, key = rest.partition("\0")
                both.setdefault(group, {})[key] = value
        header = both.pop("")
        return Sums(header["reported"], header["diverged"], both, int(header["bytes"]))

    def _collected(self, own: Singles | None) -> Singles | None:
        """Every client's message on every rank, where they are collected: each updates the same shared values."""
        clients, groups = len(self.ids), self.exchange.sending
        if not collects(self.plate.options, self.exchange, clients):
            return None
        rows: State = {
            f"{name}\0{key}": torch.zeros((len(self.index), *field.shape), dtype=field.dtype, device=self.device)
            for name, group in groups.items()
            for key, field in group.form.items()
        }
        rows |= {k: torch.zeros(len(self.index), dtype=torch.int64, device=self.device) for k in ("\0", "\0heard")}
        if own is not None:
            rows |= {f"{name}\0{key}": v for name, message in own.messages.items() for key, v in message.items()}
            rows |= {"\0": own.counts, "\0heard": own.has_message.long()}
        everyone = self.ranks.sum({k: self.ranks.scatter(v, self.index, clients) for k, v in rows.items()})
        counts, reported = everyone.pop("\0"), everyone.pop("\0heard") > 0
        messages = {name: State() for name in groups}
        for name, value in everyone.items():
            group_name, _, key = name.partition("\0")
            messages[group_name][key] = value
        return Singles([[j] for j in range(clients)], counts, reported, messages)

    def _nothing(self) -> dict[str, State]:
        """The sum of no messages."""
        forms = {
            name: {
                key: torch.zeros((1, *field.shape), dtype=field.dtype, device=self.device)
                for key, field in group.form.items()
            }
            for name, group in self.exchange.sending.items()
        }
        if self.options.masked:
            clients = len(self.ids)
            return {name: {k: v[:, 0] for k, v in encoded(form, clients).items()} for name, form in forms.items()}
        return {name: {key: value.sum(0) for key, value in form.items()} for name, form in forms.items()}

    def _population(self, fitted: Fitted) -> Population:
        """What a new client begins with."""
        sums = self.ranks.sum(fitted.new_client_sums())
        return Population({k: v / len(self.ids) for k, v in sums.items()}, {})

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        """See :class:`~hierfl.inference.engines.base.Engine`: a rank tests the global model on its part of the pool."""
        fitted = self.plate.fitted(self._for_this_rank(broadcast))
        clients = [self._of_all(rows) for rows in evaluate_personal(fitted, split, self.plate.chunk, draws)]
        everyone: MetricSums | None = None
        if self.method.has_global_model:
            fitted = replace(fitted, population=self._population(fitted))
            whole = self.federation.global_test
            if split != "test":
                whole = torch.cat(list(self.federation.indices(split))).unique()
            part = whole[self.ranks.rank :: self.ranks.size].to(self.device)
            sums = {k: torch.as_tensor(v) for k, v in evaluate_global(fitted, part).items()}
            everyone = {k: v.cpu().numpy() for k, v in self.ranks.sum(sums).items()}
        return made_scores(clients, everyone, self.task, self.options)

    def calibration(self, broadcast: Broadcast, question: Question) -> Answer:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        check_enough(self.federation.sizes(question.split), question.split, self.options)
        if self.options.masked:
            fitted = self.plate.fitted(self._for_this_rank(broadcast))
            own_answer, digits, nothing = answer_digits(fitted, question, self.plate.chunk, len(self.ids))
            added = answer_sums(unmarked(decoded(self.ranks.sum(digits), nothing, len(self.ids))))
        else:
            own_answer = self.plate.calibration(self._for_this_rank(broadcast), question)
            added = answer_sums(self.ranks.sum(flat_answer(own_answer.sums)))
        own = {
            k: self.ranks.scatter(torch.as_tensor(v), self.index, len(self.ids)) for k, v in own_answer.clients.items()
        }
        return Answer(added, {k: v.cpu().numpy() for k, v in self.ranks.sum(own).items()})

    def _of_all(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All clients' metrics of this rank's."""
        names = ["n", *client_metrics(self.task)]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
        if self.task == "classification":
            shapes["bins"] = (BINS, 3)
        num_own, clients = len(self.index), len(self.ids)
        own = {k: torch.as_tensor(rows[k]) if k in rows else torch.zeros((num_own, *s)) for k, s in shapes.items()}
        added = self.ranks.sum({k: self.ranks.scatter(v.double(), self.index, clients) for k, v in own.items()})
        metrics = {k: v.cpu().numpy() for k, v in added.items()}
        none = metrics["n"] == 0
        if none.all():
            return {"n": metrics["n"]}
        for name in client_metrics(self.task):
            metrics[name][none] = np.nan
        return metrics

    def client_summary(self, broadcast: Broadcast) -> State:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        own = self.plate.client_summary(self._for_this_rank(broadcast))
        return self.ranks.sum({k: self.ranks.scatter(v, self.index, len(self.ids)) for k, v in own.items()})

    def fitted(self, broadcast: Broadcast) -> Fitted:
        """What this rank's clients predict with."""
        return self.plate.fitted(self._for_this_rank(broadcast))

    def result(self, broadcast: Broadcast, calibrated: State | None = None) -> Fitted:
        """The result of all clients on the first rank; that of its own on another."""
        own = self.fitted(broadcast)
        personal, copies = (self.ranks.collect(rows, self.shards) for rows in (own.personal, own.copies))
        if not self.leads:
            return own
        return replace(
            own, federation=self.federation.to(self.device, own.federation.dtype), personal=personal, copies=copies
        )

    def state(self, broadcast: Broadcast) -> State:
        """All clients' on the first rank, as a plate's; the others give nothing."""
        return self.ranks.collect(self.plate.state(self._for_this_rank(broadcast)), self.shards)

    def form(self) -> StateForm:
        """The form of one plate of all clients: a run may go on with another number of ranks, or with one plate."""
        return {k: ((len(self.ids), *shape[1:]), dtype) for k, (shape, dtype) in self.plate.form().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes its own clients' rows."""
        self.plate.load({k: v[self.index.to(v.device)] for k, v in state.items()})
