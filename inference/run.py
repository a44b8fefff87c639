"""fit(): rounds of a method on a federation; Run: what came out of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.federation import Batch, Federation
from hierfl.metrics import over_clients

from . import checkpoint as checkpoints
from .draws import has_random_guide, inference_data
from .engine import PlateEngine
from .method import Method, Start, State
from .options import Options, check_draws, suitable_chunk
from .predict import Fitted, adapted, entropies, evaluate_global, evaluate_personal, log_probs, over_draws, response
from .progress import Bar
from .server import Server, participants
from .svi import check_rows, check_shapes

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
Row = dict[str, Any]


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
        self.federation = federation.to(options.device, options.dtype)
        chunk = options.chunk or suitable_chunk(federation.clients, self.federation.device)
        self.engine = PlateEngine(method, self.federation, chunk, options.seed)
        start = Start.of(method.network, options.seed)
        shared = {k: self._place(v) for k, v in method.shared(start).items()}
        self.initial = {k: self._place(v) for k, v in method.personal(start).items()}
        both = shared.keys() & self.initial.keys()
        if both:
            raise UserError(f"{sorted(both)[0]!r} is declared both shared and personal")
        self.server = Server(method, self.federation, shared, self.initial, options.quorum, options.seed)
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
        rest = self.method.state == "heard" or (not seen and "rest" in (options.idle, _IDLE[self.method.state]))
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
            index = self.federation.everyone
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
        }

    def _restore(self) -> None:
        if self.folder is None:
            raise UserError("to resume, say where the checkpoint is")
        state, record = checkpoints.load(self.folder)
        fresh = self._state()
        grown = ("server/memory/", "server/moved/", "history/", "reports")  # (not there at the beginning)
        extra = {k for k in {**state, **fresh} if k.startswith(grown)}
        if state.keys() - extra != fresh.keys() - extra or any(
            state[k].shape != v.shape for k, v in fresh.items() if k in state
        ):
            raise UserError(f"the checkpoint in {self.folder} belongs to another method, network or federation")
        if record["federation"] != self.federation.digest():
            raise UserError(f"the checkpoint in {self.folder} was made on other data or another split")
        if record["dtype"] != str(self.options.dtype):
            raise UserError(f"the checkpoint in {self.folder} holds {record['dtype']}, not {self.options.dtype}")
        other = [k for k, v in self._identity().items() if record["fit"].get(k) != v]
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


#: what a client did in a round, by number: nothing that was wanted of it; it reported; its message was dropped (not
#: finite, or of the wrong form); it trained for itself alone, and that diverged
REPORTS = ("away", "reported", "dropped", "failed")


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


METRICS = {
    "classification": (
        "accuracy", "nll", "brier", "ece", "worst10_accuracy", "accuracy_cv", "accuracy_pooled", "ece_pooled",
    ),
    "regression": ("rmse", "nll", "crps", "coverage90", "rmse_pooled"),
}  # fmt: skip
GLOBAL = ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")


@dataclass(frozen=True)
class Run:
    """What a fit has left.

    Attributes:
        fitted: method, data and state.
        options: how it was run.
        rows: one dict per evaluation and split.
        seconds: spent in rounds (evaluation and writing left out).
        chunk: rows in one plate.
        random: whether the guide has draws.
        tested: clients' metrics on test data after the last round, where it was evaluated: see :attr:`client_metrics`.
        kept_history: what the method has of each client, by evaluated round; see :attr:`history`.
        reports: (rounds, J) of :data:`REPORTS`, the last round last; see :attr:`participation`.
    """

    fitted: Fitted
    options: Options
    rows: list[Row]
    seconds: float
    chunk: int
    random: bool
    tested: list[dict[str, np.ndarray]] | None = None
    kept_history: Sequence[tuple[int, State]] = ()
    reports: np.ndarray | None = None

    def __repr__(self) -> str:
        """What was fitted to what, not the data."""
        name = type(self.fitted.method).__name__
        return f"Run({name}, {self.options.rounds} rounds, seed {self.options.seed}, {self.fitted.federation!r})"

    @property
    def shared(self) -> State:
        """What the server owns, {name: (*shape)}."""
        return self.fitted.shared

    @property
    def personal(self) -> State:
        """The clients' rows, {name: (J, *shape)}."""
        return self.fitted.personal

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per evaluation and split."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client: sizes, test metrics of its personal model, and what the method has.

        Metrics are at the posterior mean; with ``draws_`` before their name, averaged over draws.
        """
        import pandas as pd

        federation = self.fitted.federation
        columns: dict[str, Any] = {"client": list(federation.ids), "n": federation.sizes("train")}
        rows = self.client_metrics[0]
        columns["n_test"] = federation.sizes("test")
        columns |= {name: value for name, value in rows.items() if name not in ("n", "bins")}
        for more in self.client_metrics[1:]:
            columns |= {f"draws_{name}": value for name, value in more.items() if name not in ("n", "bins")}
        everyone = self.fitted.values(range(federation.clients))
        columns |= {k: v.cpu().numpy() for k, v in self.fitted.method.per_client(everyone).items()}
        return pd.DataFrame(columns)

    @property
    def history(self) -> pd.DataFrame:
        """What the method has of each client over the evaluated rounds: round, client, and columns such as tau.

        Empty where it has nothing; without rounds of before a checkpoint that did not keep it.
        """
        import pandas as pd

        ids = list(self.fitted.federation.ids)
        rounds = [
            pd.DataFrame({"round": number, "client": ids, **{k: v.numpy() for k, v in values.items()}})
            for number, values in self.kept_history
        ]
        return pd.concat(rounds, ignore_index=True) if rounds else pd.DataFrame({"round": [], "client": []})

    @property
    def participation(self) -> pd.DataFrame:
        """A row for each round, a column for each client: what it did, a number of :data:`REPORTS`."""
        import pandas as pd

        ids = list(self.fitted.federation.ids)
        held = np.zeros((0, len(ids)), np.uint8) if self.reports is None else self.reports
        rounds = range(self.options.rounds - len(held) + 1, self.options.rounds + 1)
        return pd.DataFrame(held, columns=ids, index=pd.Index(rounds, name="round"))

    @cached_property
    def client_metrics(self) -> list[dict[str, np.ndarray]]:
        """Every client's metrics on its test data: at the posterior mean, and averaged over draws if there are any."""
        if self.tested is not None:
            return self.tested
        draws = (0, self.options.draws) if self.random else (0,)
        return evaluate_personal(self.fitted, "test", self.chunk, draws)

    def reliability(self, averaged: bool = False) -> np.ndarray:
        """Counts of the clients' reliability diagrams on test data, (J, 15, 3); see :mod:`hierfl.metrics`.

        Args:
            averaged: of predictions averaged over draws, not at the posterior mean.

        Raises:
            UserError: for draws of a point guide.
        """
        if averaged and not self.random:
            raise UserError("the guide is a point: it has no draws to average over")
        return self.client_metrics[int(averaged)]["bins"]

    def entropies(self, x: Tensor | np.ndarray | None = None, draws: int = 0) -> list[np.ndarray]:
        """Every client's predictive entropy in nats: on its own test data, or on inputs (n, *event) from elsewhere.

        Args:
            x: raw inputs, as in the pool; None for everyone's own test data.
            draws: 0 predicts at the posterior mean, else averaged over so many draws.

        Raises:
            UserError: for a regression, or inputs of another shape.
        """
        check_draws(draws, 0)
        if self.fitted.federation.task != "classification":
            raise UserError("predictive entropy is a classification's")
        return entropies(self.fitted, None if x is None else self._raw(x), draws)

    def last(self, split: str = "test") -> Row:
        """The last evaluation; an empty dict if there was none on that split."""
        return next((row for row in reversed(self.rows) if row["split"] == split), {})

    def best(self) -> Row:
        """The test metrics of the round that was best on validation data.

        Empty without validation data, and for a method that samples its posterior after the last round alone: its
        rounds stand on few draws, the last one on many, and they cannot be compared.
        """
        if self.fitted.method.posterior() and not self.fitted.method.adapts:
            return {}
        name, sign = ("pm_accuracy", -1) if self.fitted.federation.task == "classification" else ("pm_rmse", 1)
        seen = [row for row in self.rows if row["split"] == "validation" and row[name] is not None]
        if not seen:
            return {}
        chosen = min(seen, key=lambda row: sign * row[name])["round"]  # the first of equals
        return next((row for row in self.rows if row["split"] == "test" and row["round"] == chosen), {})

    # -- predictions ------------------------------------------------------------------------------------------------

    def predict(self, x: Tensor | np.ndarray | pd.DataFrame, client: int | str, draws: int = 0) -> Tensor:
        """What a client's own model says of new inputs.

        Args:
            x: raw inputs, (n, *event), as in the pool; for a federation from a table also a table.
            client: its name; its place will do where no name is a number.
            draws: 0 predicts at the posterior mean, else averaged over so many draws.

        Returns:
            Class probabilities (n, C), in the order of the labels (``federation.about["labels"]`` for a table), or for
            regression mean and standard deviation (n, 2).

        Raises:
            UserError: for a client that does not exist or inputs of another shape.
        """
        row = self._row(client)
        check_draws(draws, 0)
        return self._predicted(self.fitted, row, x, draws)

    def predict_new_client(
        self,
        x: Tensor | np.ndarray | pd.DataFrame,
        draws: int = 100,
        given: tuple[Tensor | np.ndarray | pd.DataFrame, Tensor | np.ndarray | Sequence[float]] | None = None,
        rounds: int = 1,
    ) -> Tensor:
        """What the federation says to a client that was never seen.

        Without examples of its own that is what the population says: predictions averaged over draws of the prior. With
        a few, it finds its own posterior first, by the chains (or the personal part of the local steps) that the
        method has; the shared values stay, and nothing is sent.

        Args:
            x: raw inputs, (n, *event).
            draws: of the personal latents, from their prior or posterior; 0 puts them at its mean.
            given: examples of the client, inputs (m, *event) and targets (m,).
            rounds: how often it goes through those steps; 0 leaves it where a new client begins.

        Returns:
            As :meth:`predict`.

        Raises:
            UserError: for examples that do not fit, or a method in which a client learns nothing of its own.
        """
        check_draws(draws, 0)
        if not isinstance(rounds, int) or rounds < 0:
            raise UserError(f"rounds must be a whole number of at least 0, not {rounds!r}")
        if given is not None:
            if not isinstance(given, tuple) or len(given) != 2:
                raise UserError("given is a pair of a new client's examples: (inputs, targets)")
            return self._predicted(adapted(self.fitted, *self._examples(*given), rounds), 0, x, draws)
        fitted, noise = self.fitted, self.fitted.population_noise(1, draws)
        pieces = fitted.pieces(self._unlabelled(x), draws)
        return torch.cat([self._said(response(fitted.global_sites(piece, draws, noise)).fn) for piece in pieces])

    def _predicted(self, fitted: Fitted, row: int, x: Tensor | np.ndarray | pd.DataFrame, draws: int) -> Tensor:
        """What the model of a client says of inputs, piece by piece."""
        noise, parts = fitted.noise([row], draws, "predict") if draws else None, []
        for piece in fitted.pieces(self._unlabelled(x), draws):
            _, sites = fitted.personal_sites([row], piece, draws, noise=noise)
            parts.append(self._said(response(sites).fn))
        return torch.cat(parts)

    def _examples(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Examples of a new client as the pool has them, checked."""
        federation, inputs = self.fitted.federation, self._raw(x)
        targets = (
            y.to(federation.device) if isinstance(y, Tensor) else torch.tensor(np.asarray(y)).to(federation.device)
        )
        if targets.shape != (len(inputs),):
            raise UserError(f"{len(inputs)} inputs need as many targets, not {tuple(targets.shape)}")
        if federation.task == "classification" and (
            targets.is_floating_point() or not bool(((targets >= 0) & (targets < federation.classes)).all())
        ):
            raise UserError(f"labels of a new client are whole numbers from 0 to {federation.classes - 1}")
        if not bool(targets.isfinite().all()):
            raise UserError("targets hold values that are NaN or infinite")
        return inputs, targets.to(federation.y.dtype)

    def _row(self, client: int | str) -> int:
        """A client by its name; by its place only where no name is a number."""
        ids = list(self.fitted.federation.ids)
        if str(client) in ids:
            return ids.index(str(client))
        if isinstance(client, int) and 0 <= client < len(ids) and not any(name.isdigit() for name in ids):
            return client
        raise UserError(f"no client {client!r}; there are {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}")

    def _unlabelled(self, x: Tensor | np.ndarray | pd.DataFrame) -> Batch:
        federation, raw = self.fitted.federation, self._raw(x)
        y = federation.targets(torch.zeros((1, len(raw)), dtype=federation.y.dtype, device=federation.device))
        return Batch(
            federation.inputs(raw)[None],
            y,
            None,
            torch.ones(1, dtype=federation.dtype, device=federation.device),
        )

    def _raw(self, x: Tensor | np.ndarray | pd.DataFrame) -> Tensor:
        """Inputs as the pool has them, (n, *event), checked."""
        federation = self.fitted.federation
        columns, reader = federation.about.get("columns"), federation.about.get("reader")
        if reader is not None and not isinstance(x, Tensor | np.ndarray):
            x = reader(x)  # the original table's columns, by the formula
        elif columns and not isinstance(x, Tensor | np.ndarray):
            lacking = [c for c in columns if c not in x.columns]
            if lacking:
                raise UserError(f"the table lacks column {lacking[0]!r}")
            x = x[columns].to_numpy()
        raw = (
            x.to(federation.device) if isinstance(x, Tensor) else torch.tensor(np.asarray(x), device=federation.device)
        )
        if not len(raw):
            raise UserError("there are no inputs to predict for")
        if raw.is_floating_point() and not raw.isfinite().all():
            raise UserError("inputs hold values that are NaN or infinite")
        if raw.shape[1:] != federation.event_shape:
            raise UserError(
                f"inputs have shape {tuple(raw.shape)}, expected (n, {', '.join(map(str, federation.event_shape))})"
            )
        return raw

    def _said(self, fn: Any) -> Tensor:
        if self.fitted.federation.task == "classification":
            return log_probs(fn)[0].exp()
        mean, variance = over_draws(fn.mean), over_draws(fn.variance)
        spread = (variance.mean(0) + mean.var(0, unbiased=False)).sqrt()
        return torch.stack([mean.mean(0)[0], spread[0]], -1)

    # -- ArviZ ------------------------------------------------------------------------------------------------------

    def posterior(
        self,
        draws: int | None = None,
        clients: Sequence[int | str] | None = None,
        *,
        float32: bool = False,
        limit: float = 100e6,
    ) -> Any:
        """An ArviZ InferenceData with every client's posterior.

        Groups: posterior, and prior where it can be drawn from, (chain, draw, client, ...); log_likelihood and
        posterior_predictive of the training data, flat, with the client of each observation as a coordinate;
        sample_stats (chain, draw, client): lp, a guide's guide_lp, and what chains tell of their draws (step_size;
        Metropolis-adjusted ones acceptance_rate and diverging); observed_data; constant_data (sizes, the global
        latents, what the method has per client).

        Args:
            draws: how many; None for 200 (all that chains have kept), or as many as the limit allows.
            clients: only these, by name or place; None for all.
            float32: half the size where the fit is in double precision (tables).
            limit: bytes, about, that the default number of draws must not exceed.

        Raises:
            NotFinite: for a model that has diverged.
            UserError: for a client that does not exist, or is named twice.
        """
        if draws is not None:
            check_draws(draws, 2)
        everyone = range(self.fitted.federation.clients)
        rows = list(everyone) if clients is None else [self._row(client) for client in clients]
        if not rows or len(set(rows)) < len(rows):
            raise UserError("posterior takes at least one client, and each once")
        return inference_data(self.fitted, draws, rows, float32, limit)
