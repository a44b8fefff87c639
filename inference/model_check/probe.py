"""A few clients' examples, and what a model says of them: numbers to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch, Given
from hierfl.data.federation import Federation
from hierfl.rng import ClientNoise, client_keys

from ..objective.joint_model import JointModel
from ..objective.log_joint import log_density
from ..objective.sites import guide_latents, model_sites
from ..state import State, client_view

#: rows of the plate, a row's examples, positions of padding behind them, and draws
ROWS, EXAMPLES, PADDING, PARTICLES = 7, 3, 1, 3
#: how much of a number may be lost in another order of the same sums, or another kernel, by its type
TOLERANCE = {torch.float64: 1e-7}
OTHER_TOLERANCE = 2e-4
#: of a device whose convolutions round their inputs to ten bits
DEVICE_TOLERANCE = 2e-3


@dataclass(frozen=True)
class SiteNumber:
    """A number of a site for each of its rows and examples.

    Attributes:
        label: what it is, for a message: "site 'y'".
        value: (..., S, 1 or n); of any shape outside the client plate.
        per_client, per_example: whether the site is in the client plate, and in the data plate.
        observed: whether it is an observation or a factor.
    """

    label: str
    value: Tensor
    per_client: bool
    per_example: bool
    observed: bool = False

    def row(self, row: int) -> SiteNumber:
        """One client's."""
        return replace(self, value=self.value[..., row : row + 1, :]) if self.per_client else self

    def first(self, examples: int) -> SiteNumber:
        """The batch of the first examples."""
        return replace(self, value=self.value[..., :examples]) if self.per_example else self

    def first_draw(self) -> SiteNumber:
        """The values of the first draw, without a dimension of draws."""
        return replace(self, value=self.value[0]) if self.per_client and self.value.dim() > 2 else self

    def agrees(self, other: SiteNumber) -> bool:
        """Whether the two are the same.

        A global site of whose value clients train copies has the copies' shape: it depends on nothing else.
        """
        if self.value.shape != other.value.shape:
            return not self.per_client
        return same_numbers(self.value, other.value)


def same_numbers(first: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one shape agree, as far as their arithmetic can."""
    tolerance = TOLERANCE.get(first.dtype, OTHER_TOLERANCE if first.device.type == "cpu" else DEVICE_TOLERANCE)
    return torch.allclose(first, two, tolerance, tolerance, equal_nan=True)


def first_difference(first: Iterable[SiteNumber], two: Iterable[SiteNumber]) -> str:
    """The label of the first number that is not the same; empty where all are."""
    return next((a.label for a, b in zip(first, two, strict=True) if not a.agrees(b)), "")


class Probe:
    """Seven rows of some clients' first examples, padded; with fewer clients some come again.

    Args:
        method: whose model and guide.
        federation: whose clients, one at least.
        shared: initial shared values, {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        rows: shared values that clients train or differentiate by.
    """

    def __init__(
        self, method: JointModel, federation: Federation, shared: State, personal: State, rows: Sequence[str]
    ) -> None:
        self.method, self.federation = method, federation
        self.shared, self.personal, self.trained = shared, personal, rows
        self.clients = [row % federation.clients for row in range(ROWS)]
        sizes = federation.sizes()
        self.counts = [min(sizes[j], EXAMPLES - row % 2) for row, j in enumerate(self.clients)]
        width = EXAMPLES + PADDING
        own = [federation.train[j][:n] for j, n in zip(self.clients, self.counts, strict=True)]
        # Padded with a row's own first example, as everywhere.
        index = torch.stack([torch.cat([i, i[:1].expand(width - len(i))]) for i in own])
        counts = torch.tensor(self.counts, device=federation.device)[:, None]
        self.mask = torch.arange(width, device=federation.device) < counts
        self.batch = federation.gather(index, self.mask, self.clients)
        self.keys = client_keys(range(ROWS), federation.device)
        self.values = self.start()

    def shake(self) -> list[SiteNumber]:
        """Moves the values a little, unless the model has no finite density there; what it says of all rows then.

        What is zero, or the same for all clients, hides what depends on it.
        """
        start, self.values = self.values, self.shaken()
        numbers = self.numbers(self.batch)
        if all(bool(number.value.isfinite().all()) for number in numbers):
            return numbers
        self.values = start
        return self.numbers(self.batch)

    def start(self) -> State:
        """Initial values as all rows see them."""
        own = {**{k: self.shared[k] for k in self.trained}, **self.personal}
        return client_view(self.shared, {k: v.expand(ROWS, 1, *v.shape) for k, v in own.items()})

    def shaken(self) -> State:
        """Initial values, moved a little: what is the same everywhere differs, zeros become positive, signs stay."""

        def moved(value: Tensor) -> Tensor:
            if value.numel() < 2 or bool((value != value.flatten()[0]).any()):
                return value if value.numel() != 1 or bool(value.any()) else value + 0.1
            places = torch.arange(value.numel(), device=value.device, dtype=value.dtype).reshape(value.shape)
            change = 0.1 + 0.4 * places.sin().square()
            return value * (1 + change) if bool(value.any()) else change

        shared = {k: moved(v) for k, v in self.shared.items()}
        own = {k: moved(v) for k, v in {**{k: shared[k] for k in self.trained}, **self.personal}.items()}
        stretch = 1 + torch.arange(1, ROWS + 1) / (4 * ROWS)
        return client_view(shared, {k: v * stretch.to(v).reshape(-1, *[1] * (v.dim() + 1)) for k, v in own.items()})

    def row(self, row: int, examples: int | None = None) -> Batch:
        """One row as it is, or without its padding: its first examples."""
        part, b = slice(row, row + 1), self.batch
        if examples is None:
            return Batch(b.x[part], b.y[part], self.mask[part], b.n[part])
        return Batch(b.x[part, :examples], b.y[part, :examples], None, b.n[part])

    def values_of(self, rows: Sequence[int]) -> State:
        """What these rows see."""
        own = {*self.trained, *self.personal}
        return {k: v[list(rows)] if k in own else v for k, v in self.values.items()}

    def noise(self, rows: Sequence[int], counts: Sequence[int]) -> ClientNoise:
        """Keyed by these rows, the same each time."""
        return ClientNoise(
            self.keys[list(rows)], ("model check",), PARTICLES, counts=counts, dtype=self.federation.dtype
        )

    def numbers(
        self, batch: Batch, rows: Sequence[int] = range(ROWS), *, single: bool = False, leaves: State | None = None
    ) -> list[SiteNumber]:
        """What guide and model say of a batch: draws and log densities, in the order in which they are run.

        Args:
            batch: of these rows.
            rows: which of the probe's.
            single: the first draw alone, without a dimension of draws.
            leaves: values instead of the probe's, of which gradients are wanted.
        """
        counts = [batch.width] * len(rows) if batch.mask is None else [self.counts[row] for row in rows]
        values = {**self.values_of(rows), **(leaves or {})}
        with pyro.validation_enabled(False), torch.set_grad_enabled(leaves is not None):
            latents = guide_latents(self.method, batch, values, self.noise(rows, counts))
            if single:
                latents = {
                    k: site._replace(value=site.value[0]) if site.value.dim() - site.fn.event_dim > 2 else site
                    for k, site in latents.items()
                }
            sites = model_sites(self.method, batch, values, latents)
            numbers = []
            for name, site in latents.items():
                label = f"guide site {name!r}"
                drawn = site.value.sum([*range(-site.fn.event_dim, 0)]) if site.fn.event_dim else site.value
                drawn = torch.where(site.mask, drawn, 0.0) if isinstance(site.mask, Tensor) else drawn
                numbers += [SiteNumber(label, drawn, True, site.per_example)]
                numbers += [SiteNumber(label, log_density(site.fn, site), True, site.per_example)]
            for name, site in sites.items():
                density = log_density(site.fn, site)
                numbers.append(
                    SiteNumber(f"site {name!r}", density, site.per_client, site.per_example, site.kind == "observed")
                )
        return numbers

    def given(self, row: int) -> Given:
        """A row's examples, for a method that conditions what it says of others on them."""
        examples = self.row(row, self.counts[row])
        return Given(examples, self.keys[[row]], ("model check", "given"))


def other_targets(batch: Batch) -> Tensor:
    """The target of another example that differs, for each example that has one, (S, n)."""
    targets = batch.y.flatten()
    differs = targets[None] != targets[:, None]
    return targets[differs.to(torch.uint8).argmax(1)].reshape(batch.y.shape)


def joined(first: Batch, two: Batch) -> Batch:
    """A row's examples with those of another behind them."""
    return Batch(torch.cat([first.x, two.x], 1), torch.cat([first.y, two.y], 1), None, first.n)
