"""fit(): rounds of a method on a federation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.metrics.pooling import over_clients
from hierfl.schema import AnyOf, Number, Schema, check

from . import checkpoint as checkpoints
from .draws import has_random_guide
from .elbo import check_rows, check_shapes
from .engine import PlateEngine
from .method import Method, Start, State
from .options import MAX_MESSAGE_RATIO, Options, suitable_chunk
from .predict import Fitted, evaluate_global, evaluate_personal, response
from .progress import Bar
from .result import REPORTS, Row, Run
from .server import Server, check_participation, participants

log = logging.getLogger("hierfl")

METRICS = {
    "classification": (
        "accuracy", "nll", "brier", "ece", "worst10_accuracy", "accuracy_cv", "accuracy_pooled", "ece_pooled",
    ),
    "regression": ("rmse", "nll", "crps", "coverage90", "rmse_pooled"),
}  # fmt: skip
#: what a checkpoint says beside the tensors; a row of metrics has numbers, or nothing where one does not apply
RECORD: Schema = {
    "seconds": Number(float, 0), "failed": Number(int, 0), "federation": str, "dtype": str,
    "metrics": [{"round": Number(int, 0), "split": str, "*": AnyOf(Number(), None)}],
    "fit": {"method": str, "settings": {"*": str}, "*": AnyOf(Number(), str)},
}  # fmt: skip
GLOBAL = ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")


def fit(
    method: Method,
    federation: Federation,
    rounds: int = 30,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    observe: Callable[[list[Row]], None] | None = None,
    **options: Any,
) -> Run:
    """Fits a method to a federation.

    Args:
        method: what to fit.
        federation: to what.
        rounds: T.
        folder: where to keep checkpoints; None for none.
        resume: go on from the checkpoint in ``folder``. The result is the one an uninterrupted fit would have given.
        progress: a bar on standard error, if it takes longer than two seconds.
        observe: called with all metrics rows after each evaluation.
        **options: fields of :class:`Options`.

    Raises:
        UserError: for options out of range, or a checkpoint that cannot be used.
    """
    return Fit(method, federation, Options(rounds=rounds, **options)).run(
        folder, resume=resume, progress=progress, observe=observe
    )


#: what clients do that neither report nor are looked at, by what becomes of their personal values
_IDLE = {"kept": "train", "fresh": "rest", "heard": "rest"}


class Fit:
    """A fit, checked and ready to run: what cannot work is said before anything is written.

    Args:
        method, federation: what to fit to what.
        options: how.

    Raises:
        UserError: for a method whose parts do not fit together.
    """

    def __init__(self, method: Method, federation: Federation, options: Options) -> None:
        if not isinstance(method, Method):
            raise UserError(f"fit takes a method made with a network, such as PFedVEM(network), not {method!r}")
        if method.network.encoder is not None and not method.latent:
            name = method.name or type(method).__name__
            raise UserError(f"{name} has no latent features: architecture(spec, federation), without latent=True")
        self.options, self.method = options, method
        self.folder: Path | None = None
        self.observe: Callable[[list[Row]], None] | None = None
        if options.quorum > federation.clients:
            raise UserError(f"a quorum of {options.quorum} cannot be reached by {federation.clients} clients")
        check_participation(federation.clients, options.participation, options.quorum)
        self.federation = federation.to(options.device, options.dtype)
        chunk = options.chunk or suitable_chunk(federation.clients, self.federation.device)
        self.engine = PlateEngine(method, self.federation, chunk, options.seed)
        start = Start.of(method.network, options.seed)
        shared = {k: self._place(v) for k, v in method.shared(start).items()}
        self.initial = {k: self._place(v) for k, v in method.personal(start).items()}
        both = shared.keys() & self.initial.keys()
        if both:
            raise UserError(f"{sorted(both)[0]!r} is declared both shared and personal")
        for name, value in {**shared, **self.initial}.items():
            if not bool(value.isfinite().all()):
                raise UserError(f"the initial value of {name!r} is not finite in {options.dtype}")
        self.server = Server(
            method, self.federation, shared, self.initial, options.quorum, options.seed, options.max_message_ratio
        )
        self.personal = {k: self._everyone(v) for k, v in self.initial.items()}
        names = [k for group in method.copies for k in method.expand(group, shared)]
        self.copies = {k: self._everyone(shared[k]) for k in names}
        self.rows: list[Row] = []
        #: rounds that were evaluated, and what the method has of each client in them: {name: (J,) each}
        self.history: list[tuple[int, State]] = []
        #: of the rounds so far (or of the last of them), what every client did: (J,) each, see :data:`REPORTS`
        self.reports: list[Tensor] = []
        self.seconds, self.round, self.failures = 0.0, 0, 0
        #: round and clients' metrics of the last evaluation on test data
        self._tested: tuple[int, list[dict[str, np.ndarray]]] | None = None
        self._posterior: State | None = None  # (not kept in checkpoints: it is a function of the round's state)
        self._posterior_of = -1
        trained = [name for step in method.local() for name in step.trains]
        trained += [group for group, (rule, _) in self.server.rules.items() if rule.differentiates]
        known = {**shared, **self.initial}
        rows = {k for name in trained for k in method.expand(name, known) if k in shared}
        response(check_shapes(method, self.federation, shared, self.initial, sorted(rows)))
        check_rows(method, self.federation, shared, self.initial)
        begun = self._fitted(self.personal)
        self.random = has_random_guide(begun)
        if method.has_global_model:
            begun.global_sites(self.federation.template())

    def _place(self, value: Tensor) -> Tensor:
        return value.detach().to(self.federation.device, self.options.dtype, copy=True)

    def _everyone(self, value: Tensor) -> Tensor:
        return value.expand(self.federation.clients, *value.shape).clone()

    def fitted(self) -> Fitted:
        """The state so far; after the last round with what the method's posterior steps make of it.

        Where the method adapts, that is so after every round.
        """
        early = self.round < self.options.rounds and not self.method.adapts
        if early or not self.method.posterior():
            return self._fitted(self.personal)
        if self._posterior is None or self._posterior_of != self.round:
            self._posterior_of = self.round
            self._posterior = self.engine.posterior(self.round, self.server.shared, self.personal, self.copies)
            sums = sum(value.flatten(1).sum(1) for value in self._posterior.values())
            diverged = [
                self.federation.ids[j] for j in (~torch.as_tensor(sums).isfinite()).nonzero().flatten().tolist()
            ]
            if diverged:
                log.warning("the posterior chains of %d clients diverged: %s", len(diverged), ", ".join(diverged[:10]))
        return self._fitted(self._posterior)

    def _fitted(self, personal: State) -> Fitted:
        return Fitted(
            self.method, self.federation, self.method.settled(self.server.shared), personal, self.copies, self.initial,
            self.options.seed,
        )  # fmt: skip

    def run(
        self,
        folder: Path | None = None,
        *,
        resume: bool = False,
        progress: bool = True,
        observe: Callable[[list[Row]], None] | None = None,
    ) -> Run:
        """Runs the rounds; arguments as for :func:`fit`."""
        self.folder, self.observe = folder, observe
        with torch.no_grad(), pyro.get_param_store().scope():
            return self._run(resume, progress)

    def _run(self, resume: bool, progress: bool) -> Run:
        options, keeper = self.options, _Keeper(self.folder)
        if resume:
            self._restore()
        elif self.folder is not None:
            keeper.save(self._state(), self._record())
        if options.rounds == 0 and not self.rows:
            self.evaluate()
        with Bar(options.rounds, self.round, show=progress) as bar:
            while self.round < options.rounds:
                self.step()
                evaluated = options.evaluates(self.round)
                if evaluated:
                    self.evaluate()
                if self.folder is not None and (self.round == options.rounds or keeper.due()):
                    keeper.save(self._state(), self._record())
                bar.advance(self._last("test") if evaluated else None)
        tested = self._tested[1] if self._tested is not None and self._tested[0] == self.round else None
        return Run(
            self.fitted(), self.options, self.rows, self.seconds, self.engine.chunk, self.random, tested,
            self.history, torch.stack(self.reports).cpu().numpy() if self.reports else None,
        )  # fmt: skip

    @torch.no_grad()
    def step(self) -> None:
        """One round: all clients' local steps, messages, the server's update."""
        options, start = self.options, time.perf_counter()
        self.round += 1
        reporting = participants(self.federation, self.round, options.seed, options.participation, options.quorum)
        self.server.open()
        dropped = self.server.dropped.clone()
        seen = options.evaluates(self.round)
        never = self.method.state == "heard" or options.idle == "never"
        rest = never or (not seen and "rest" in (options.idle, _IDLE[self.method.state]))
        before, void = self.personal, self.server.void.clone()
        self.personal, self.copies, failed = self.engine.round(
            self.round, self.server, self.personal, self.copies, reporting, rest=rest
        )
        self.server.close()
        if self.method.state == "heard":  # in a void round nobody was
            nothing = self.server.void > void
            self.personal = {k: torch.where(nothing, before[k], v) for k, v in self.personal.items()}
        what = failed.to(torch.uint8) * REPORTS.index("failed")
        what[torch.tensor(reporting, dtype=torch.long, device=what.device)] = REPORTS.index("reported")
        self.reports.append(torch.where(self.server.dropped > dropped, REPORTS.index("dropped"), what))
        diverged = failed.nonzero().flatten().tolist()  # the round's one word to the host, after its end
        self.seconds += time.perf_counter() - start
        if diverged:
            self.failures += len(diverged)
            names = ", ".join(self.federation.ids[j] for j in diverged[:10])
            log.warning(
                "round %d: %d client%s diverged and kept the previous state: %s%s",
                self.round, len(diverged), "s" * (len(diverged) > 1), names, ", ..." * (len(diverged) > 10),
            )  # fmt: skip

    @torch.no_grad()
    def evaluate(self) -> None:
        """Adds a row of metrics for each split, where it has data."""
        for split in self.options.splits:
            if any(self.federation.sizes(split)):
                self.rows.append(self._evaluated(split))
        fitted = self.fitted()
        own = self.method.per_client(fitted.values(range(self.federation.clients)))
        if own:
            self.history.append((self.round, {k: own[k].cpu() for k in sorted(own)}))
        if self.observe is not None:
            self.observe(self.rows)

    def _evaluated(self, split: str) -> Row:
        fitted, task, chunk = self.fitted(), self.federation.task, self.engine.chunk
        row: Row = {"round": self.round, "split": split}
        draws = (0, self.options.draws) if self.random else (0,)
        found = evaluate_personal(fitted, split, chunk, draws)
        if split == "test":
            self._tested = self.round, found
        personal = [over_clients(rows, task) for rows in found]
        for k, kind in enumerate(("pm", "pm_draws")):
            row |= {f"{kind}_{name}": personal[k].get(name) if k < len(personal) else None for name in METRICS[task]}
        if self.method.has_global_model:
            index = self.federation.global_test
            if split != "test":
                index = torch.cat(list(self.federation.indices(split))).unique()
            numbers = evaluate_global(fitted, index)
        else:
            numbers = {}
        row |= {f"gm_{name}": numbers.get(name) for name in METRICS[task] if name in GLOBAL}
        row |= {
            "dropped": int(self.server.dropped.sum()),
            "void": int(self.server.void),
            "bytes": self.server.bytes,
            "failed": self.failures,
            **{f"moved_{group}": float(value) for group, value in self.server.moved.items()},
        }
        return {**row, "seconds": round(self.seconds, 3)}

    def _last(self, split: str) -> Row | None:
        return next((row for row in reversed(self.rows) if row["split"] == split), None)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _state(self) -> State:
        return {
            **{f"server/{k}": v for k, v in self.server.state().items()},
            **{f"personal/{k}": v for k, v in self.personal.items()},
            **{f"copies/{k}": v for k, v in self.copies.items()},
            **({"reports": torch.stack(self.reports)} if self.reports else {}),
            **{f"history/{t}/{k}": v for t, values in self.history for k, v in values.items()},
        }

    def _record(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "seconds": self.seconds,
            "failed": self.failures,
            "metrics": self.rows,
            "fit": self._identity(),
            "federation": self.federation.digest(),
            "dtype": str(self.options.dtype),
        }

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a resumed fit to be the one that was begun."""
        options, method = self.options, self.method
        return {
            "method": type(method).__qualname__,
            "settings": {k: repr(v) for k, v in vars(method.settings).items()},
            **{k: getattr(options, k) for k in ("seed", "participation", "quorum", "evaluate_every", "idle", "draws")},
            "max_message_ratio": options.max_message_ratio,
        }

    def _restore(self) -> None:
        if self.folder is None:
            raise UserError("to resume, say where the checkpoint is")
        state, record = checkpoints.load(self.folder)
        check(record, RECORD, self.folder / "checkpoint.json")
        if record["dtype"] != str(self.options.dtype):
            raise UserError(f"the checkpoint in {self.folder} holds {record['dtype']}, not {self.options.dtype}")
        fresh = self._state()
        grown = ("server/memory/", "server/moved/", "history/", "reports")  # (not there at the beginning)
        extra = {k for k in {**state, **fresh} if k.startswith(grown)}
        if state.keys() - extra != fresh.keys() - extra or any(
            (state[k].shape, state[k].dtype) != (v.shape, v.dtype) for k, v in fresh.items() if k in state
        ):
            raise UserError(f"the checkpoint in {self.folder} belongs to another method, network or federation")
        if record["federation"] != self.federation.digest():
            raise UserError(f"the checkpoint in {self.folder} was made on other data or another split")
        begun = {"max_message_ratio": MAX_MESSAGE_RATIO, **record["fit"]}  # (older checkpoints have none)
        other = [k for k, v in self._identity().items() if begun.get(k) != v]
        if other:
            raise UserError(f"the checkpoint in {self.folder} was begun with a different {', '.join(other)}")
        if record["round"] > self.options.rounds:
            raise UserError(f"the checkpoint in {self.folder} is at round {record['round']} of {self.options.rounds}")
        device = self.federation.device

        def under(prefix: str) -> State:
            return {k.removeprefix(prefix): v.to(device) for k, v in state.items() if k.startswith(prefix)}

        self.server.load(under("server/"))
        self.personal, self.copies = under("personal/"), under("copies/")
        self.reports = list(state["reports"].to(device)) if "reports" in state else []
        held: dict[int, State] = {}
        for key, value in sorted(under("history/").items()):
            number, _, name = key.partition("/")
            held.setdefault(int(number), {})[name] = value.cpu()
        self.history = sorted(held.items())
        self.round, self.seconds, self.failures = record["round"], record["seconds"], record["failed"]
        self.rows = record["metrics"]
        if self.observe is not None:
            self.observe(self.rows)


class _Keeper:
    """Writes checkpoints, as often as they cost at most a twentieth of the time."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self._cost, self._since = folder, 0.0, time.perf_counter()

    def due(self) -> bool:
        return time.perf_counter() - self._since > 20 * self._cost

    def save(self, state: State, record: dict[str, Any]) -> None:
        assert self.folder is not None
        start = time.perf_counter()
        checkpoints.save(self.folder, state, record)
        self._since = time.perf_counter()
        self._cost = self._since - start
