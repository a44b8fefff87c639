"""How a federation is made of data as users have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..calls import checked_call
from .arrays import natural_pool
from .column_table import NO_RESPONSE, column_table
from .folders.clients import joined_clients
from .folders.load import folder_pool
from .frame_arrays import frame_arrays
from .given_arrays import given_pool
from .input_kinds import Inputs
from .input_scales import OF_A_FILE, Standardise, standardised, warn_of_unscaled
from .npz import load_npz
from .pool import PooledDataset, Task

if TYPE_CHECKING:
    import pandas as pd


class FederationMakers:
    """The class methods of :class:`hierfl.data.federation.Federation` that make one."""

    @classmethod
    def from_pool(
        cls, pool: PooledDataset, clients: int, split: str, *, validation: float = 0.1, seed: int = 0,
        validation_of: str = "classes",
    ) -> Self:  # fmt: skip
        """See :meth:`hierfl.data.federation.Federation.from_pool`."""
        raise NotImplementedError

    def remembering(self, kept: Mapping[str, Any]) -> Self:
        """See :meth:`hierfl.data.federation.Federation.remembering`."""
        raise NotImplementedError

    @classmethod
    @checked_call
    def from_arrays(
        cls, x: Any, y: Any, client: Any, *, x_test: Any = None, y_test: Any = None, client_test: Any = None,
        test: float = 0.2, validation: float = 0.0, seed: int = 0, task: Task | None = None, spellings: str = "refuse",
        standardise: Standardise = "auto", name: str = "arrays", inputs: Inputs | None = None, weights: Any = None,
        validation_of: str = "classes",
    ) -> Self:  # fmt: skip
        """A federation from arrays whose rows say which client they belong to.

        Args:
            x: inputs, (N, *event): an array, a tensor, or a table whose columns are then known by name.
            y: targets, (N,) or (N, 1): words, truth values and whole numbers are labels, floats are responses (or say
                so with ``task``). Classes are numbered in the labels' sorted order, which ``about["labels"]`` keeps
                where it is not 0, 1, ...
            client: (N,), the client of each row.
            x_test, y_test, client_test: test rows; without them a fraction ``test`` of every client's rows is held out.
            test, validation: that fraction, 0 for none; and as in :meth:`from_pool`.
            seed: of what is held out.
            task: "classification" or "regression"; by default from the type of ``y``.
            standardise: bring inputs to mean 0 and standard deviation 1 over the training rows; "auto" where a column
                of fractions is far from that (:mod:`hierfl.data.input_scales`).
            inputs: "pixels" from 0 to 255, which are standardised by channel; "numbers", which standardise="auto" may
                scale where they are whole, too; or "ids", whole numbers that reach the network as int64. None: uint8 of
                two dimensions or more are pixels, others numbers.
            name, spellings: what to call it; and as in :meth:`from_frame`.
            weights: (N,), for how many training rows each row stands; None for one each. Scales and units are
                weighted, too; metrics count every row once.
            validation_of: as in :meth:`from_pool`.

        Raises:
            UserError: for arrays that do not fit together, NaN, or a client with too few rows.
        """
        pool, kept = given_pool(
            x,
            y,
            client,
            x_test,
            y_test,
            client_test,
            test,
            seed,
            task,
            name,
            standardise,
            inputs,
            spellings,
            weights,
        )
        made = cls.from_pool(pool, 0, "natural", validation=validation, seed=seed, validation_of=validation_of)
        return made.remembering(kept)

    @classmethod
    @checked_call
    def from_clients(cls, clients: Iterable[Any], *, test_clients: Iterable[Any] | None = None, **how: Any) -> Self:
        """A federation from clients one after the other.

        Args:
            clients: (client, inputs (n, *event), targets (n,)) of each.
            test_clients: the same of test rows; a client that lacks there has none. Without it a fraction ``test`` of
                every client's rows is held out.
            **how: arguments of :meth:`from_arrays` by name, such as ``test``, ``task`` or ``inputs``.

        Raises:
            UserError: as :meth:`from_arrays`; for a client that comes twice, and inputs of several shapes.
        """
        name = how.get("name", "clients")
        rows = joined_clients(clients, name)
        x_test, y_test, client_test = (
            (None, None, None) if test_clients is None else joined_clients(test_clients, f"{name}: test_clients")
        )
        more: dict[str, Any] = {"x_test": x_test, "y_test": y_test, "client_test": client_test, "name": name, **how}
        return cls.from_arrays(rows.x, rows.y, rows.client, **more)

    @classmethod
    @checked_call
    def from_folder(
        cls, path: str | Path, *, size: int | tuple[int, int] | None = None, clients: int = 0, split: str = "natural",
        test: float = 0.2, validation: float = 0.1, seed: int = 0, standardise: Standardise = "auto",
        validation_of: str = "classes",
    ) -> Self:  # fmt: skip
        """A federation from a folder: pictures ``ROOT/client/label/*.png``, an .npz for each client, or LEAF's json.

        Args:
            path: of the folder; see :func:`hierfl.data.folders.load.folder_pool`.
            size: height and width to which pictures are cut and resized; a single number for squares.
            clients, split: as of :meth:`from_npz`.
            test: the fraction of each client's rows held out, where the folder has no parts ``train`` and ``test``.
            validation, validation_of, seed, standardise: as of :meth:`from_pool` and :meth:`from_arrays`.

        Raises:
            UserError: for a folder of another form.
        """
        shape = (size, size) if isinstance(size, int) else size
        pool, kept = folder_pool(path, size=shape, test=test, seed=seed, standardise=standardise)
        made = cls.from_pool(pool, clients, split, validation=validation, seed=seed, validation_of=validation_of)
        return made.remembering(kept)

    @classmethod
    @checked_call
    def from_npz(
        cls, path: str | Path, *, clients: int = 0, split: str = "natural", validation: float = 0.1, seed: int = 0,
        standardise: Standardise = "auto", validation_of: str = "classes",
    ) -> Self:  # fmt: skip
        """A federation from an ``.npz`` file; see :func:`hierfl.data.npz.load_npz` for the arrays it must hold."""
        pool = standardised(load_npz(Path(path)), standardise)
        if standardise == "auto":
            warn_of_unscaled(pool, OF_A_FILE)
        return cls.from_pool(pool, clients, split, validation=validation, seed=seed, validation_of=validation_of)

    @classmethod
    @checked_call
    def from_frame(
        cls, df: pd.DataFrame, *, client: str, y: str, x: Sequence[str] | None = None, test: float = 0.2,
        validation: float = 0.0, seed: int = 0, task: Task | None = None, standardise: Standardise = "auto",
        spellings: str | Mapping[str, str] = "refuse", name: str = "frame", weights: str | None = None,
        validation_of: str = "classes",
    ) -> Self:  # fmt: skip
        """A federation from a table: one column names the client, one is the response, the rest are inputs.

        A column of words, or a pandas Categorical, is a category: each of its levels is an input of 0 and 1.

        Gradient steps want inputs of about unit size. With ``standardise="auto"`` columns of more than two values are
        standardised where one of them is far from that. Labels are as in :meth:`from_arrays`; ``about["labels"]`` has
        them all.

        Args:
            df, client, y, x: the table, and names of its columns; ``x=None`` takes all others.
            test, validation, seed, task, standardise: as in :meth:`from_arrays`.
            spellings: of clients, labels and levels; "refuse", "join" or "keep" those that
                :mod:`~hierfl.data.spellings` lists, or {column: choice}.
            name: what to call it.
            weights: the column that says for how many training rows each row stands, as in :meth:`from_arrays`.
            validation_of: as in :meth:`from_pool`.

        Raises:
            UserError: for unknown columns, missing values or inputs that are no numbers.
        """
        read = frame_arrays(df, client, y, x, task, spellings, weights)
        pool = natural_pool(
            read.x, read.y, read.client, None, None, None, test, seed, read.task, name, standardise, len(read.labels),
            numbers=True, weights=read.weights,
        )  # fmt: skip
        made = cls.from_pool(pool, 0, "natural", validation=validation, seed=seed, validation_of=validation_of)
        return made.remembering(read.remembered)

    @classmethod
    def from_numbers(
        cls, x: Mapping[str, np.ndarray], y: np.ndarray, client: np.ndarray, *, test: float, validation: float,
        seed: int,
    ) -> Self:  # fmt: skip
        """A regression of columns of numbers (n,), as :meth:`from_frame` makes it of a table that has no others.

        Args:
            x, y, client: the inputs, the response, and each row's client.
            test, validation, seed: as in :meth:`from_arrays`.

        Raises:
            UserError: for numbers that are not finite, and as :meth:`from_frame`.
        """
        import pandas as pd

        inputs, response = np.stack([np.asarray(column, float) for column in x.values()], 1), np.asarray(y, float)
        if not (np.isfinite(inputs).all() and np.isfinite(response).all()):
            df = pd.DataFrame({**x, "response": y, "client": client})
            frame_arrays(df, "client", "response", list(x), "regression", "keep")
        pool = natural_pool(
            inputs, response, client, None, None, None, test, seed, "regression", "frame", False, numbers=True
        )
        made = cls.from_pool(pool, 0, "natural", validation=validation, seed=seed)
        return made.remembering(
            {"columns": list(x), "categories": {}, "client": "client", "response": "response", "labels": []}
        )

    @classmethod
    def from_columns(cls, df: pd.DataFrame, *, client: str, **how: Any) -> Self:
        """Columns by name for a plain Pyro model; see :func:`hierfl.data.column_federation.column_federation`."""
        wide, facts = column_table(df, client, **how)
        how = {"test": 0.0, "task": "regression", "standardise": False, "spellings": "keep"}
        made = cls.from_frame(wide, client=client, y=NO_RESPONSE, x=facts["columns"], **how)
        return made.remembering(facts)
