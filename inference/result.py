"""Run: what came out of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError

from .draws import inference_data
from .method import State
from .options import Options, check_whole
from .predict import Fitted, adapted, entropies, evaluate_personal, log_probs, over_draws, response

if TYPE_CHECKING:
    import pandas as pd


Row = dict[str, Any]

#: what a client did in a round, by number: nothing that was wanted of it; it reported; its message was dropped (not
#: finite, or of the wrong form); it trained for itself alone, and that diverged
REPORTS = ("away", "reported", "dropped", "failed")


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
        check_whole("draws", draws, 0)
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
        check_whole("draws", draws, 0)
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
        check_whole("draws", draws, 0)
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
        observed: bool = True,
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
            observed: whether to hold the training data's responses; without them there is no observed_data. (What
                log_likelihood and posterior_predictive say of them stays.)

        Raises:
            NotFinite: for a model that has diverged.
            UserError: for a client that does not exist, or is named twice.
        """
        if draws is not None:
            check_whole("draws", draws, 2)
        everyone = range(self.fitted.federation.clients)
        rows = list(everyone) if clients is None else [self._row(client) for client in clients]
        if not rows or len(set(rows)) < len(rows):
            raise UserError("posterior takes at least one client, and each once")
        return inference_data(self.fitted, draws, rows, float32, limit, observed)
