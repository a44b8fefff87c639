"""Writes the gallery's references: posteriors of pooled rows by NumPyro's NUTS.

    pip install -e '.[referee]'
    python tests/support/nuts/nuts_references.py [NAME ...] [--seeds 0 1 2]

Each writes ``docs/gallery/references/NAME-SEED.json``: of every quantity, on its constrained scale, mean, sd, 5 % and
95 % quantiles, effective draws (bulk and tail) and R-hat; what the chains cost; and a ``point``, one draw with its log
joint, constants included, which the page's own text must give too. NumPyro is imported in this folder only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import arviz
import jax
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density
from nuts_models import REFEREES, Pooled, Referee

GALLERY = Path(__file__).parents[3] / "docs" / "gallery"
CHAINS, WARMUP, BLOCK, BLOCKS = 4, 1500, 2500, 12
#: what a settled reference has
RHAT = 1.01


def pooled(name: str, seed: int) -> tuple[Pooled, str]:
    """Rows of a page's data, and its client column."""
    spec = importlib.util.spec_from_file_location(name, GALLERY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Pooled(module.data(seed), module.GROUP), module.GROUP


def diagnosed(draws: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Effective draws and R-hat of quantities (chains, draws, ...)."""
    data = arviz.convert_to_dataset(draws)
    diagnostics = {
        "ess": arviz.ess(data, method="bulk"),
        "ess_tail": arviz.ess(data, method="tail"),
        "rhat": arviz.rhat(data, method="rank"),
    }
    return {name: {what: values[name].to_numpy() for what, values in diagnostics.items()} for name in draws}


def sampled(referee: Referee, rows: Pooled, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Draws of all sites (chains, draws, ...), and what they cost."""
    model = handlers.reparam(referee.model, config={site: LocScaleReparam(0) for site in referee.noncentred})
    kernel = NUTS(model, target_accept_prob=referee.accept)
    chains = MCMC(
        kernel, num_warmup=WARMUP, num_samples=BLOCK, num_chains=CHAINS, chain_method="vectorized", progress_bar=False
    )
    start, extra = time.perf_counter(), ("num_steps", "diverging")
    chains.warmup(jax.random.PRNGKey(seed), rows, collect_warmup=True, extra_fields=extra)
    warm = int(chains.get_extra_fields()["num_steps"].sum())
    blocks, steps, diverging = [], 0, 0
    while len(blocks) < BLOCKS:
        chains.run(chains.post_warmup_state.rng_key, rows, extra_fields=extra)
        chains.post_warmup_state = chains.last_state
        blocks.append({k: np.asarray(v) for k, v in chains.get_samples(group_by_chain=True).items()})
        steps += int(chains.get_extra_fields()["num_steps"].sum())
        diverging += int(chains.get_extra_fields()["diverging"].sum())
        draws = {name: np.concatenate([block[name] for block in blocks], axis=1) for name in blocks[0]}
        asked = diagnosed({name: draws[name] for name in (*referee.shared, *referee.own)})
        if min(what[kind].min() for what in asked.values() for kind in ("ess", "ess_tail")) >= referee.ess:
            break
    cost = {
        "sampler": f"NumPyro {numpyro.__version__}, NUTS",
        "chains": CHAINS,
        "warmup": WARMUP,
        "draws": BLOCK * len(blocks),
        "divergences": diverging,
        "gradients_of_warmup": warm,
        "gradients": steps,
        "seconds": round(time.perf_counter() - start, 1),
    }
    return draws, cost


def short(values: np.ndarray, digits: int = 6) -> Any:
    """Numbers of so many significant digits, as lists."""
    if np.ndim(values):
        return [short(value, digits) for value in values]
    return float(f"{float(values):.{digits}g}")


def reference(name: str, seed: int) -> dict[str, Any]:
    """What a reference holds."""
    referee, (rows, group) = REFEREES[name], pooled(name, seed)
    draws, cost = sampled(referee, rows, seed)
    names = (*referee.shared, *referee.own)
    quantities, checks = {}, diagnosed({name: draws[name] for name in names})
    for site in names:
        flat = draws[site].reshape(-1, *draws[site].shape[2:])
        low, high = np.quantile(flat, [0.05, 0.95], axis=0)
        quantities[site] = {
            "of": "clients" if site in referee.own else "globals",
            "mean": short(flat.mean(0)),
            "sd": short(flat.std(0, ddof=1)),
            "q05": short(low),
            "q95": short(high),
            "ess": short(checks[site]["ess"], 4),
            "ess_tail": short(checks[site]["ess_tail"], 4),
            "rhat": short(checks[site]["rhat"]),
        }
    rhat = max(what["rhat"].max() for what in checks.values())
    ess = min(min(what["ess"].min(), what["ess_tail"].min()) for what in checks.values())
    with handlers.seed(rng_seed=0):
        trace = handlers.trace(referee.model).get_trace(rows)
    latent = [k for k, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
    point = {k: np.array(short(draws[k][0, -1], 12)) for k in latent}
    log_joint, _ = log_density(referee.model, (rows,), {}, point)
    return {
        "model": name,
        "seed": seed,
        "group": group,
        "clients": rows.names,
        "rows": len(rows.j),
        "settled": bool(rhat < RHAT and ess >= referee.ess and not referee.caveat),
        "caveat": referee.caveat,
        "worst_rhat": short(rhat),
        "least_ess": short(ess, 4),
        **cost,
        "quantities": quantities,
        "point": {"values": {k: v.tolist() for k, v in point.items()}, "log_joint": float(log_joint)},
    }


def main() -> None:
    """Writes those that are asked for."""
    parser = argparse.ArgumentParser(description="References of the gallery by NUTS.")
    parser.add_argument("names", nargs="*", choices=[[], *REFEREES], help="models; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the data")
    asked = parser.parse_args()
    numpyro.enable_x64()
    for name in asked.names or REFEREES:
        for seed in asked.seeds:
            record = reference(name, seed)
            path = GALLERY / "references" / f"{name}-{seed}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(record) + "\n")
            summary = {k: record[k] for k in ("settled", "worst_rhat", "least_ess", "draws", "divergences", "seconds")}
            print(name, seed, summary, flush=True)


if __name__ == "__main__":
    main()
