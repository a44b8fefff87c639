"""Writes the gallery's pages: each model is fitted, and the page has what that printed, beside NUTS.

    OMP_NUM_THREADS=1 python tests/support/gallery_pages.py [NAME ...] [--out docs/gallery]

It also runs the code of docs/own-model.md, and replaces what that prints. The pages include the models' text from the
models' files. What else the pages say is in docs/gallery/pages.toml.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl import UserError, fit_model
from hierfl.models.any_model.printed import number_names

sys.path.append(str(Path(__file__).parents[1]))

from support.executed_pages import executed
from support.gallery import GALLERY, load
from support.gallery_pictures import draw
from support.gallery_table import sentences, table
from support.wrong_table import replaced

OWN = GALLERY.parent / "own-model.md"
WORDS = GALLERY / "pages.toml"
HEAD = "| | mean | sd | 5 % | 95 % | NUTS: mean | sd | 5 % | 95 % |\n|---|" + "---:|" * 8
#: below a page's picture, by its kind
CAPTIONS = {
    "clients": "Mean and central 90 %: the fit, and below it NUTS on pooled rows.",
    "numbers": "Mean and central 90 %: the fit, and below it NUTS on pooled rows.",
    "pair": "Draws of two globals. The cross is NUTS: its means, and central 90 % intervals.",
    "agree": "Each point is one number of one client: the fit and NUTS, means on the left and sds on the right.",
    "series": "Three clients: mean and central 90 % of the fit, ends of NUTS's interval dashed, rows as points.",
    "heat": "Posterior means of each topic's probabilities of words.",
}


def words() -> dict[str, Any]:
    """What the pages say, by name."""
    return tomllib.loads(WORDS.read_text(encoding="utf-8"))


def reference_of(name: str) -> dict[str, Any] | None:
    """NUTS of the published data, or None; both texts of eight schools have one."""
    shared = "eight_schools" if name.startswith("eight_schools") else name
    path = GALLERY / "references" / f"{shared}-0.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def page(name: str, pictures: Path | None = None) -> str:
    """The text of a page; its picture is written into a folder, if one is given."""
    says, module = words()[name], load(name)
    before = "## The fit" if name != "spatial" else "## The refusal"
    parts = [
        f"# {says['title']}",
        f"{says['learn']}",
        f"## The model\n\n```{{literalinclude}} {name}.py\n:pyobject: model\n```",
        f"## The data\n\n{_sentence(module.data)}\n\n"
        f"```{{literalinclude}} {name}.py\n:start-at: import numpy\n:end-before: def model\n```",
        f"{before}\n\n```python\nfrom {name} import GROUP, data, model\n\nimport hierfl\n\n"
        "fitted = hierfl.fit_model(model, data(), group=GROUP)\nprint(fitted.summary())\n```",
    ]
    frame = module.data()
    try:
        fitted = fit_model(module.model, frame, group=module.GROUP, progress=False)
    except UserError as refused:
        return "\n\n".join([*parts, f"It ends with one line:\n\n```text\n{refused}\n```", says["note"]]) + "\n"
    reference = reference_of(name)
    parts += [f"It prints:\n\n```text\n{fitted.summary()}\n```", *_beside(name, fitted, reference)]
    if note := says.get("note"):
        parts.append(note)
    if pictures is not None:
        draw(says["picture"], fitted, frame, reference, pictures / f"{name}.png")
    label = says["picture"].get("label", says["title"])
    parts.append(f"![{label}](images/{name}.png)\n\n*{CAPTIONS[says['picture']['kind']]}*")
    return "\n\n".join(parts) + "\n"


def _sentence(data: Any) -> str:
    return " ".join((inspect.getdoc(data) or "").split())


def _beside(name: str, fitted: Any, reference: dict[str, Any] | None) -> list[str]:
    """The comparison with NUTS, and what both cost."""
    if reference is None:
        return []
    rows = [HEAD]
    lines = []
    for of, samples in (("globals", fitted.globals), ("clients", fitted.clients)):
        gaps, numbers = [], 0
        for site, entry in reference["quantities"].items():
            if entry["of"] != of:
                continue
            theirs = [np.asarray(entry[what]) for what in ("mean", "sd", "q05", "q95")]
            draws = samples[site].reshape(len(samples[site]), -1)
            ours = [draws.mean(0), draws.std(0), *np.quantile(draws, [0.05, 0.95], axis=0)]
            mean, sd = theirs[0].ravel(), theirs[1].ravel()
            gaps.append([(np.abs(ours[0] - mean) / sd).max(), np.abs(ours[1] / sd - 1).max()])
            numbers += len(mean)
            if of == "globals":
                columns = [*ours, *(value.ravel() for value in theirs)]
                names = number_names(site, theirs[0].shape)
                rows += [_row(label, values) for label, *values in zip(names, *columns, strict=True)]
        gap = np.max(gaps, 0)
        lines.append(
            f"Means of {numbers} numbers of {of} differ by at most {gap[0]:.2f} sd, "
            f"sds by at most {100 * gap[1]:.0f} %."
        )
    lines.append("Both have Monte-Carlo error: the fit keeps 1,000 draws by default.")
    return ["## Beside NUTS\n\n" + "\n".join(rows), " ".join(lines), _cost(name, fitted, reference)]


def _row(label: str, values: Sequence[float]) -> str:
    return f"| `{label}` | " + " | ".join(f"{value:#.3g}" for value in values) + " |"


def _cost(name: str, fitted: Any, reference: dict[str, Any]) -> str:
    (rule,) = fitted.method.exchange().values()
    sent = sum(field.nbytes for field in rule.form(fitted.run.shared).values()) * fitted.run.rounds
    lines = [f"A client sends {sent / 1000:.0f} kB in {fitted.run.rounds} rounds."]
    lines += sentences(name, int(reference["gradients"]))
    return " ".join(lines)


def index() -> str:
    """The gallery's index: a line for each page."""
    rows = [f"- [{says['title']}]({name}.md). {says['learn']}" for name, says in words().items()]
    return (
        INTRODUCTION
        + "\n".join(rows)
        + BESIDE
        + table(list(words()))
        + "\n\n```{toctree}\n:hidden:\n\n"
        + "\n".join(words())
        + "\n```\n"
    )


INTRODUCTION = """# Gallery

Plain Pyro models, each fitted from sums over clients, beside NUTS on the same rows pooled. {doc}`../own-model` says how
such a model is written. Each page has the model as its file has it, the data, the call,
what it printed, and a comparison.

Each file also runs by command, once its data are a table:

    python -c "import poisson_glmm; poisson_glmm.data().to_csv('visits.csv', index=False)"
    hierfl run poisson_glmm.py --data visits.csv --group clinic

`python tests/support/gallery_pages.py` makes all pages again.

"""


BESIDE = """

## All beside NUTS

Largest errors over all numbers of a model and its data seeds, of fits with `draws=4000, worth=4000, points=2000`:
means and ends of 90 % intervals in the reference's standard deviations, and standard deviations. Both sides have
Monte-Carlo error. A star marks more than 0.1 (means), 10 % (standard deviations) or 0.15 (ends). Rounds, bytes that a
client sends, and seconds are means over the seeds. The fits' seconds are of one core that had other work, and were
suspended for some of them.

"""


def write(name: str, out: Path) -> None:
    """One page, and its picture."""
    (out / "images").mkdir(exist_ok=True)
    (out / f"{name}.md").write_text(page(name, out / "images"), encoding="utf-8")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=GALLERY)
    args = parser.parse_args()
    for name in args.names or words():
        write(name, args.out)
        print(name, flush=True)
    OWN.write_text(executed(replaced(OWN.read_text(encoding="utf-8"))), encoding="utf-8")
    (args.out / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
