"""What masked sums cost: CPU seconds of a site and of the server, and bytes of a site, for rosters of several sizes.

With shares as many sites are lost as may be. Run from the root of the repository::

    OMP_NUM_THREADS=1 python tests/support/mask_costs.py --out experiments/results/privacy/mask-costs.json

All sites are in this process, with one thread. A question is one round; what an epoch costs comes once for all of its
questions, or once at all without shares. The question is that of round 2: its header has the digest of one round before
it (``past``). Each round more is 33 bytes.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hierfl.experiments import methods  # noqa: F401

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.masked_sites import Masked

from hierfl.experiments.bench.machine import Machine
from hierfl.inference.engines.remote.masks.groups import threshold
from hierfl.inference.engines.remote.wire import encode, header
from hierfl.inference.state import State

SIZES = (4, 20, 200)
#: of a mixed model's message, and of a network's
MESSAGES: dict[str, tuple[int, torch.dtype]] = {"mixed": (300, torch.float64), "network": (50_000, torch.float32)}
#: questions that keys are dealt for at once
SLOTS = 8


class Timed(Masked):
    """Masked sites whose CPU seconds and bytes are kept by kind of request."""

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """See :class:`support.masked_sites.Masked`."""
        answers = {}
        for name, request in requests.items():
            kind = header(request)["kind"]
            if name in self.away.get(kind, ()):
                continue
            start = time.process_time()
            answers[name] = self.sites[name].answer(request)
            self.seconds[kind].append(time.process_time() - start)
            self.bytes[kind].append((len(request), len(answers[name])))
        return answers

    def reset(self) -> None:
        """Begins to count."""
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.bytes: dict[str, list[tuple[int, int]]] = defaultdict(list)


def costs(sites: int, message: str, mode: Any, folder: Path) -> dict[str, Any]:
    """Of one roster, message and mode."""
    size, dtype = MESSAGES[message]
    values: dict[str, State] = {
        f"c{index:03d}": {"x": torch.randn(size, dtype=dtype)} for index in range(sites)
    }  # fmt: skip
    begun = time.process_time()
    timed = Timed(folder, values, mode=mode, slots=SLOTS)
    timed.reset()
    figures: dict[str, Any] = {
        "sites": sites,
        "message": message,
        "mode": mode,
        "slots": SLOTS if mode == "shares" else 0,
    }
    figures["plain_bytes"] = len(encode({"round": 1, "client": "c000"}, values["c000"]))
    lost = sites - threshold(sites) if mode == "shares" else 0
    for number, away in ((1, 0), (2, lost)):
        timed.reset()
        timed.away = {"round": list(values)[:away]}
        start = time.process_time()
        total = timed.sum(number)
        spent = time.process_time() - start
        assert total is not None
        assert total.reported == sites - away
        server = spent - sum(map(sum, timed.seconds.values()))
        if number == 1:  # with shares a site has checked the keys before it is asked
            epoch = [kind for kind in ("keys", "shares") if timed.seconds[kind]]
            figures["epoch"] = {
                "site_seconds": sum(median(timed.seconds[kind]) for kind in epoch),
                "site_bytes_to": sum(int(median(to for to, _ in timed.bytes[kind])) for kind in epoch),
                "site_bytes_from": sum(int(median(back for _, back in timed.bytes[kind])) for kind in epoch),
                "first_question_with_keys_bytes_to": int(median(to for to, _ in timed.bytes["round"])),
                "first_question_site_seconds": median(timed.seconds["round"]), "server_seconds": server,
            }  # fmt: skip
            continue
        kinds = [kind for kind in ("round", "sign", "open") if timed.seconds[kind]]
        figures["question"] = {
            "lost": away, "site_seconds": sum(median(timed.seconds[kind]) for kind in kinds),
            "server_seconds": server, "trips": len(kinds),
            "site_bytes_to": sum(int(median(to for to, _ in timed.bytes[kind])) for kind in kinds),
            "site_bytes_from": sum(int(median(back for _, back in timed.bytes[kind])) for kind in kinds),
        }  # fmt: skip
    print(f"{sites} {message} {mode}: {time.process_time() - begun:.1f} s {json.dumps(figures)}", flush=True)
    return figures


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--messages", nargs="*", default=list(MESSAGES), choices=list(MESSAGES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    logging.getLogger("hierfl").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"OMP_NUM_THREADS=1 python tests/support/mask_costs.py --out {given.out}",
        "what": "CPU seconds of one site (median) and of the server, and bytes to and from one site; all sites in one "
        "process, one thread; the question is that of round 2, and each later one has 33 bytes "
        "more for each round before it",
        "machine": asdict(Machine.this_machine("cpu")), "results": [],
    }  # fmt: skip
    for sites in given.sites:
        for message in given.messages:
            for mode in ("whole", "shares"):
                with TemporaryDirectory(prefix="mask-costs-") as folder:
                    record["results"].append(costs(sites, message, mode, Path(folder)))
                if given.out is not None:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
