"""How much memory a client of each method takes: the numbers behind docs/speed.md.

    python tests/support/client_memory.py [METHOD ...]

Of Fashion-MNIST's images and 784-100-10, 20 images a client. "kept" is what lies there between rounds, the client's own
values and its copies of shared ones; twice that while a round writes new ones beside the old. "in a plate" is how much
the peak of a round grows with a client that is computed beside others: by the peaks of processes with 100 clients in a
plate and with 300. Its 20 images take 78 KiB of that.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from hierfl.errors import UserError
from hierfl.experiments.bench.memory import peak_memory
from hierfl.experiments.bench.settings import Setting, prepare
from hierfl.models import METHODS

FEW, MANY, EACH = 100, 300, 20


def main() -> None:
    """Prints a row for each method."""
    print(f"{'method':14} {'kept, KiB':>12} {'in a plate, KiB':>16}")
    for name in sys.argv[1:] or METHODS:
        setting = Setting("", (1, 28, 28), FEW * EACH, FEW, "mlp:100", 10, name, "equal")
        try:
            fit = prepare(setting)
        except UserError as error:  # of tables
            print(f"{name:14} {error}")
            continue
        store = fit.engine.store  # type: ignore[attr-defined]
        kept = sum(v[0].numel() * v.element_size() for v in {**store.personal, **store.copies}.values())
        more = replace(setting, clients=MANY, examples=MANY * EACH)
        peaks = [peak_memory(case, chunk=case.clients) for case in (setting, more)]
        plate = (peaks[1] - peaks[0]) / (MANY - FEW) * 1024 - 2 * kept / 1024
        print(f"{name:14} {kept / 1024:12.0f} {plate:16.0f}", flush=True)


if __name__ == "__main__":
    main()
