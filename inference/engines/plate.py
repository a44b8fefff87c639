"""The plate engine: all clients as rows of one plate, in chunks, on one device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.devices import Sending, send
from hierfl.nn.precision import precision
from hierfl.plurals import counted
from hierfl.recorder import recorder

from ..calibration.answer import Answer
from ..calibration.question import Question
from ..clients.chunk import ClientChunk
from ..clients.store import ClientStore
from ..evaluation.fitted import Fitted
from ..evaluation.global_model import evaluate_global
from ..evaluation.personal import evaluate_personal
from ..local.base import LocalStep
from ..method.base import Method
from ..method.schedule import Plan
from ..method.with_noise import privacy_of
from ..model_check.check import check_model, is_shipped
from ..model_check.clients import check_clients
from ..options import Options
from ..server.exchange import Exchange
from ..server.receiver import Receiver
from ..server.robust.watch import collects
from ..state import State, StateForm, form_of_state
from .base import Broadcast, ClientStatus, Reports, Scores
from .chunk_size import suitable_chunk
from .fixed import answer_of, made_scores
from .groups import Collected, reports_of
from .masking import check_enough, check_maskable, client_groups

log = logging.getLogger("hierfl")


class PlateEngine:
    """See :class:`~hierfl.inference.engines.base.Engine`.

    Args:
        method, federation: whose clients.
        options: of the fit: device, dtype, seed, chunk.
        everyone: how many clients the fit has, where these are some of them.
    """

    leads, every_round = True, False  # one process runs the fit, and may go back as far as it has to

    def __init__(self, method: Method, federation: Federation, options: Options, *, everyone: int = 0) -> None:
        self.method, self.options, self.everyone = method, options, everyone or federation.clients
        self.federation = federation.to(options.device, options.dtype)
        # Privacy is None without noise; a real site replaces its source.
        self.schedule, self.privacy = method.schedule(), privacy_of(method, options)
        self.recorder = recorder(self.device) if options.cuda_graphs else None
        self.groups: list[set[int]] = []  # whose messages are added up together
        self._final: tuple[int, State] | None = None  # not in checkpoints: a function of the round's values
        #: how far a client that is alone here has moved its copies of shared values: root mean squares
        self.moved: dict[str, float] = {}

    @property
    def ids(self) -> Sequence[str]:
        """The clients' names."""
        return self.federation.ids

    @property
    def task(self) -> str:
        """The task of the data."""
        return self.federation.task

    @property
    def device(self) -> torch.device:
        """The device of the plate."""
        return self.federation.device

    def agree(self, wish: bool) -> bool:
        """Returns the wish: there is no other process."""
        return wish

    def template(self) -> Batch:
        """One row without data."""
        return self.federation.template()

    def has_data(self, split: str) -> bool:
        """Whether any client has examples."""
        return any(self.federation.sizes(split))

    def digest(self) -> str:
        """A fingerprint of data and split."""
        return self.federation.digest()

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        method = self.method
        copied = {k: shared[k] for group in method.local_copies for k in method.expand(group, shared)}
        tentative = self.schedule.commit == "if-used"
        self.initial, self.exchange = initial, exchange
        if not self.groups:
            check_maskable(method, exchange, self.options, self.everyone)
            self.groups = client_groups(self.ids, self.options)
        #: the fewest and the most rows that clients may declare: those that they have; with noise they declare none
        self.rows = None if self.privacy else send(self.federation.amounts, self.device, torch.float64).expand(2, -1)
        numbers = sum(v.numel() for v in (*initial.values(), *copied.values()))
        self.chunk = self.options.chunk or suitable_chunk(self.federation, numbers)
        self.store = ClientStore(len(self.ids), initial, copied, tentative, self.options.client_state)
        trained = [name for step in method.local() for name in step.trains]
        trained += [name for name, group in exchange.groups.items() if group.rule.sends_gradients]
        values = {**shared, **initial}
        rows = {k for name in trained for k in method.expand(name, values) if k in shared}
        if not is_shipped(method):
            check_model(method, self.federation, shared, initial, exchange, sorted(rows))
        check_clients(method, self.federation, shared, initial, sorted(rows))

    def round(self, broadcast: Broadcast, plan: Plan) -> Reports:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        collected = self.collected(broadcast, plan)
        return reports_of(collected, self.exchange, self.options, self.groups, self.everyone)

    def collected(self, broadcast: Broadcast, plan: Plan) -> Collected:
        """A round's local steps, and what the clients here have sent. Arguments as for :meth:`round`."""
        clients, reporting = len(self.ids), set(plan.reporting)
        collect = collects(self.options, self.exchange, self.everyone)
        receivers = [
            Receiver(
                self.exchange, broadcast.shared, clients, self.device, self.options.max_message_ratio, self.everyone,
                rows=self.rows, collect=collect, fixed=self.options.masked,
            )
            for _ in self.groups
        ]  # fmt: skip
        diverged = torch.zeros(clients, dtype=torch.bool, device=self.device)
        for chunk, healthy in self._trained(broadcast, plan.training):
            diverged[send(chunk.clients, self.device)] = ~healthy
            for receiver, group in zip(receivers, self.groups, strict=True):
                senders = [row for row, j in enumerate(chunk.clients) if j in reporting and j in group]
                if senders and self.exchange.groups:
                    sending = chunk if len(senders) == len(chunk.clients) else chunk.take(senders)
                    at = send(senders, self.device)
                    receiver.add(self.exchange.messages(sending), sending.clients, healthy[at])
        sums = [receiver.sums for receiver in receivers]
        # Those who train for themselves alone, too.
        sums[0] = replace(sums[0], diverged=diverged.sum() - sum(part.diverged for part in sums[1:]))
        status = diverged.to(torch.uint8) * ClientStatus.DIVERGED
        status[send(plan.reporting, self.device, torch.long)] = ClientStatus.REPORTED
        rejected = torch.stack([receiver.rejected for receiver in receivers]).sum(0)
        kept = receivers[0].singles
        return Collected(
            sums, torch.where(rejected > 0, ClientStatus.REJECTED, status), diverged, kept and kept.of_all(clients)
        )  # fmt: skip

    def message(self, broadcast: Broadcast, *, reports: bool, always: bool = False) -> tuple[dict[str, State], bool]:
        """One client's round, where it is the only one here.

        Args:
            broadcast: as for :meth:`round`.
            reports: whether it is to send a message.
            always: whether it sends one where its computation has failed, too: zeros, with its share of noise.

        Returns:
            The message {group: {key: (*shape)}}, empty where none is wanted, and whether its computation has failed.
        """
        message: dict[str, State] = {}
        failed = False
        for chunk, healthy in self._trained(broadcast, [0]):
            failed = not bool(healthy)
            self.moved = chunk.moved()
            if reports and (always or not failed):
                messages = self.exchange.messages(chunk)
                message = {group: {k: v[0] for k, v in state.items()} for group, state in messages.items()}
        return message, failed

    def _trained(self, broadcast: Broadcast, clients: Sequence[int]) -> Iterator[tuple[ClientChunk, Tensor]]:
        """Plates of clients after a round's local steps, whose values are kept, and who is healthy, (S,)."""
        self.store.settle(broadcast.used, broadcast.replies)
        self.store.open(len(clients) == len(self.ids))
        for rows, start in self._plates(clients):
            chunk = ClientChunk(
                self.method, self.federation, rows, broadcast.round, self.options.seed, broadcast.shared, start,
                recorder=self.recorder, privacy=self.privacy,
            )  # fmt: skip
            with precision(self.options.precision):
                chunk = _done(chunk, self.method.local())
            healthy = chunk.healthy()
            self.store.put(rows, chunk, healthy)
            yield chunk, healthy
        self.store.close()

    def _plates(self, clients: Iterable[int], copies: bool = False) -> Iterator[tuple[list[int], State]]:
        """Clients, largest first, as many at a time as make a plate, and their values.

        Values of the host are sent before the plate before is computed.
        """
        sizes = self.federation.sizes()
        order = sorted(clients, key=lambda j: (-sizes[j], self.ids[j]))
        chunks = [order[first : first + self.chunk] for first in range(0, len(order), self.chunk)]
        ahead, sent = int(self.store.home == "host"), deque[Sending]()
        for number, rows in enumerate(chunks):
            for wanted in chunks[number + len(sent) : number + ahead + 1]:
                sent.append(self.store.rows(wanted, self.device, copies))
            yield rows, sent.popleft().wait()

    def fitted(self, broadcast: Broadcast) -> Fitted:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        self.store.settle(broadcast.used, broadcast.replies)
        personal = self._finished(broadcast) if broadcast.final else self.store.personal
        return Fitted(
            self.method, self.federation, self.method.prediction_params(broadcast.shared), personal, self.store.copies,
            self.initial, self.options.seed,
        )  # fmt: skip

    def result(self, broadcast: Broadcast, calibrated: State | None = None) -> Fitted:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        return self.fitted(broadcast)

    def _finished(self, broadcast: Broadcast) -> State:
        """What the final steps make of the personal values, once for each round."""
        if self._final is None or self._final[0] != broadcast.round:
            values = self._final_values(broadcast)
            sums = sum(value.flatten(1).sum(1) if value.dim() > 1 else value for value in values.values())
            lost = [self.ids[j] for j in (~torch.as_tensor(sums).isfinite()).nonzero().flatten().tolist()]
            if lost:
                log.warning(
                    "the posterior chains of %s diverged: %s", counted(len(lost), "client"), ", ".join(lost[:10])
                )
            self._final = broadcast.round, values
        return self._final[1]

    def _final_values(self, broadcast: Broadcast) -> State:
        """{name: (J, *new shape)}; chains' statistics are among them (``NAME/stats``)."""
        store, new = self.store, State()
        for rows, start in self._plates(range(len(self.ids)), copies=True):
            chunk = ClientChunk(
                self.method, self.federation, rows, broadcast.round, self.options.seed, broadcast.shared, start,
                recorder=self.recorder,
            )  # fmt: skip
            with precision(self.options.precision):
                chunk = _done(chunk, self.schedule.final_steps, "posterior")
            stats = [name for name in chunk.values if name.endswith("/stats")]
            for name in (*store.personal, *stats):  # draws are many: they are held once
                value = chunk.values[name].squeeze(1)
                if name not in new:
                    home = "cpu" if store.home == "host" else self.device
                    new[name] = value.new_empty((len(self.ids), *value.shape[1:]), device=home)
                new[name].index_copy_(0, send(rows, new[name].device), value.to(new[name].device))
        return new

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        return self.scores_of(self.fitted(broadcast), split, draws)

    def scores_of(self, fitted: Fitted, split: str, draws: Sequence[int]) -> Scores:
        """How the clients here predict with these values."""
        clients = evaluate_personal(fitted, split, self.chunk, draws)
        everyone = evaluate_global(fitted, self._pooled(split)) if self.method.has_global_model else None
        return made_scores(clients, everyone, self.task, self.options)

    def calibration(self, broadcast: Broadcast, question: Question) -> Answer:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        check_enough(self.federation.sizes(question.split), question.split, self.options)
        return answer_of(self.fitted(broadcast), question, self.chunk, self.options)

    def _pooled(self, split: str) -> Tensor:
        """The examples on which the global model is evaluated here."""
        if split == "test":
            return self.federation.global_test
        return torch.cat(list(self.federation.indices(split))).unique()

    def client_summary(self, broadcast: Broadcast) -> State:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        return self.method.client_summary(self.fitted(broadcast).values(range(len(self.ids))))

    def state(self, broadcast: Broadcast) -> State:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        self.store.settle(broadcast.used, broadcast.replies)
        return self.store.state()

    def form(self) -> StateForm:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        return form_of_state(self.store.state())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        home = "cpu" if self.store.home == "host" else self.device
        self.store.load({k: v.to(home) for k, v in state.items()})
        self._final = None


def _done(chunk: ClientChunk, steps: Sequence[LocalStep], stage: str = "") -> ClientChunk:
    """The rows after some steps; (stage, number) keys their randomness, and in a round the number alone."""
    for phase, step in enumerate(steps):
        chunk = step.run(chunk, (stage, phase) if stage else phase)
    return chunk
