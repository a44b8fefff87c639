"""Tables of what a fit has left of its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def clients_table(run: Any) -> pd.DataFrame:
    """See :attr:`~.result.Run.clients`."""
    import pandas as pd

    federation = run.fitted.federation
    sizes = {"n": federation.sizes("train"), "n_test": federation.sizes("test")}
    columns: dict[str, Any] = {"client": list(federation.ids), **sizes}
    for before, found in zip(("", "draws_"), run.client_metrics, strict=False):
        columns |= {f"{before}{name}": value for name, value in found.items() if name not in ("n", "bins")}
    if run.calibration is not None:
        columns |= run.calibration.clients
    own = run.fitted.method.client_summary(run.fitted.values(range(federation.clients)))
    columns |= {k: v.cpu().numpy() for k, v in own.items()}
    if (lost := federation.about.get("left_out")) is not None:  # (of tables: rows that lacked a value)
        columns["left_out"] = [lost.get(str(j), 0) for j in federation.ids]
    return pd.DataFrame(columns)


def history_table(run: Any) -> pd.DataFrame:
    """See :attr:`~.result.Run.history`."""
    import pandas as pd

    rounds = [
        pd.DataFrame({"round": number, "client": list(run.ids), **{k: v.numpy() for k, v in values.items()}})
        for number, values in run.summaries
    ]
    return pd.concat(rounds, ignore_index=True) if rounds else pd.DataFrame({"round": [], "client": []})
