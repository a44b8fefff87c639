"""Processes that run one fit together (torchrun): who they are, and sums over all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hierfl.errors import RankLost, UserError

from ..messages.form import LONGEST
from ..state import State

#: how long a rank waits for the others: as long as the slowest may take for its clients
PATIENCE = timedelta(hours=2)


def started() -> bool:
    """Whether this process is one of several that torchrun, or ``--engine distributed``, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def follows() -> bool:
    """Whether it is one of them, and not the first."""
    return started() and int(os.environ["RANK"]) > 0


class Ranks:
    """The processes that run this fit; every one of them calls everything here in the same order.

    Args:
        device: on which this one computes.

    Raises:
        UserError: where the others are not to be found.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if not dist.is_initialized():
            with _lost_rank_errors():
                dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values: Mapping[str, Tensor]) -> State:
        """Sums over the ranks, all numbers of a type in one reduction; each rank gives the same names and shapes."""
        totals: State = {}
        for dtype in sorted({v.dtype for v in values.values()}, key=str):
            names = sorted(k for k, v in values.items() if v.dtype == dtype)
            flat = torch.cat([values[k].reshape(-1) for k in names]).to(self.device)
            with _lost_rank_errors():
                dist.all_reduce(flat)
            parts = flat.split([values[k].numel() for k in names])
            totals |= {k: part.view(values[k].shape) for k, part in zip(names, parts, strict=True)}
        return {k: totals[k] for k in values}

    def agree(self, wish: bool) -> bool:
        """What the first rank wishes."""
        flag = torch.tensor([wish], dtype=torch.uint8, device=self.device)
        with _lost_rank_errors():
            dist.broadcast(flag, 0)
        return bool(flag)

    def collect(self, rows: Mapping[str, Tensor], rows_of_ranks: Sequence[Sequence[int]]) -> State:
        """All clients' rows on the first rank, {name: (J, *shape)}; nothing on the others.

        Args:
            rows: this rank's, {name: (S, *shape)}: each rank gives the same names.
            rows_of_ranks: which clients are whose.
        """
        whole_values: State = {}
        clients = sum(map(len, rows_of_ranks))
        for name, value in sorted(rows.items()):
            own = value.contiguous().to(self.device)
            if self.rank:
                with _lost_rank_errors():
                    dist.send(own, 0)
                continue
            whole = own.new_empty((clients, *own.shape[1:]), device=value.device)
            for rank, index in enumerate(rows_of_ranks):
                part = own if rank == 0 else own.new_empty((len(index), *own.shape[1:]))
                if rank:
                    with _lost_rank_errors():
                        dist.recv(part, rank)
                whole[torch.tensor(index, device=value.device)] = part.to(value.device)
            whole_values[name] = whole
        return whole_values

    def scatter(self, rows: Tensor, index: Tensor, clients: int) -> Tensor:
        """All clients' rows (J, *shape) of this rank's (S, *shape), zero where they are another's: ready for a sum."""
        whole = rows.new_zeros((clients, *rows.shape[1:]), device=self.device)
        whole[index.to(self.device)] = rows.to(self.device)
        return whole


@contextmanager
def _lost_rank_errors() -> Iterator[None]:
    """What torch raises where another rank has gone becomes one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        # Torch's begins with the line of its source, and goes on with advice.
        reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).split("\n")[0]).split(". ")[0][:LONGEST]
        raise RankLost(f"another rank has stopped, or cannot be reached ({reason}); resume the run") from error


def local_device(device: str) -> torch.device:
    """The device of this rank: of "cuda" the one with its number on this machine.

    Raises:
        UserError: where there are fewer than ranks.
    """
    own = torch.device(device)
    if own.type != "cuda":
        return own
    number, num_devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if own.index is not None:
        raise UserError(f"ranks have a device each: say device=cuda (--device cuda), not {device}")
    if number >= num_devices:
        raise UserError(f"rank {number} of this machine has no device of its own: there are {num_devices}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def shards(costs: Sequence[int], ids: Sequence[str], ranks: int) -> list[list[int]]:
    """Clients by rank: the most costly first, each to the rank that has least to do so far.

    Args:
        costs: of each client.
        ids: their names, which decide between equals.
        ranks: how many.

    Raises:
        UserError: for fewer clients than ranks.
    """
    if len(costs) < ranks:
        raise UserError(f"{len(costs)} clients cannot be shared by {ranks} ranks")
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    key: Callable[[int], tuple[int, str]] = lambda j: (-costs[j], ids[j])  # noqa: E731
    for j in sorted(range(len(costs)), key=key):
        least = load.index(min(load))
        by_rank[least].append(j)
        load[least] += max(1, costs[j])
    return [sorted(rows) for rows in by_rank]
