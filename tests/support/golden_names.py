"""What golden runs call things: old names and new ones, what need not be the same, and where rounding may differ.

Cases are written in the old names, those of the commit before "the second edition" of the layout. Whoever renames
something adds a line here; the same script then runs, and compares, the checkouts before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Convert = Callable[[Any], Any]


def share_to_step(keep: Any) -> Any:
    """The server's step from the share of the old values that it kept, which was the setting."""
    step = round(1 - float(keep), 12)
    return f"{step:g}" if isinstance(keep, str) else step


#: methods whose `beta` was that share
AVERAGING = (
    "pfedvem", "fedavg", "fedper", "fedrep", "fedbn", "lg-fedavg", "fedprox", "fedavg-ft", "ifca", "ditto", "apfl",
)  # fmt: skip

#: what clients do that do not report
ABSENT = {"train": "train", "rest": "catch-up", "never": "freeze"}
#: command line option: old -> new, as in {"--idle": "--absent-clients"}; taken where the command has the new one
OPTIONS: dict[str, str] = {
    "--idle": "--absent-clients", "--noise": "--response-sd", "--client": "--group", "--error": "--known-se",
    "--test": "--test-fraction", "--validation": "--validation-fraction",
}  # fmt: skip
#: an option's value, (old option, old value) -> new value, as in {("--idle", "never"): "freeze"}; where the option has
#: its new name (see OPTIONS)
VALUES: dict[tuple[str, str], str] = {("--idle", "rest"): "catch-up", ("--idle", "never"): "freeze"}
#: (method or "*", old setting) -> (new setting, what becomes of its value), as in
#: {("fedavg", "beta"): ("server_lr", lambda v: 1 - v), ("*", "w_0"): ("init_scale", None)}; taken where the method's
#: Settings have the new field and not the old one
SETTINGS: dict[tuple[str, str], tuple[str, Convert | None]] = {
    ("*", "w_0"): ("init_scale", None),
    ("*", "keeps"): ("local_norm", None),
    ("*", "refresh"): ("bn_refresh_epochs", None),
    ("fedpop", "controls"): ("control_variates", None),
    ("fedpop", "memory"): ("beta2", None),
    ("mixed-effects", "settle"): ("newton_rounds", None),
    ("pfedme", "beta"): ("server_lr", None),
    ("pfedbayes", "beta"): ("server_lr", None),
    **{(name, "beta"): ("server_lr", share_to_step) for name in AVERAGING},
}
#: (method or "*", old setting, old value) -> new value, as in {("fedbn", "keeps", "all"): "weights"}; taken where the
#: setting has its new name (see SETTINGS); a setting that keeps its name needs ("fedbn", "keeps"): ("keeps", ...) there
SETTING_VALUES: dict[tuple[str, str, str], str] = {}
#: a command or module of experiments, old words -> new words, as in {"module collect": "table collect"}; taken where
#: the command line has the first of the new words
COMMANDS: dict[str, str] = {
    "module choose": "search", "module collect": "collect", "module cost": "cost", "module ablations": "ablation-table",
}  # fmt: skip
#: where the Python interface is: module names, the first that has the name is taken
HOMES: dict[str, tuple[str, ...]] = {
    "app": ("hierfl.experiments.cli",),
    "METHODS": ("hierfl.models",),
    "fit": ("hierfl.inference",),
    "Federation": ("hierfl",),
    "architecture": ("hierfl.networks", "hierfl.nn.networks.build"),
    "from_formula": ("hierfl.formulas", "hierfl.data.formula.federate"),
    "read_table": ("hierfl.tables:read", "hierfl.data.tables:read"),
}
#: attributes and arguments of the Python interface, old -> new: of Run, Fitted, and keywords of fit
ATTRIBUTES: dict[str, str] = {}
#: names inside files, for the comparison: (glob of files, pattern of the whole key, replacement, conversion of the
#: value or None), as in ("summary.json", r"failed_local_steps", "diverged", None). The first that fits renames a key of
#: the old folder, unless the new folder has the old key. Keys are paths: "run.idle", "best.pm_nll", a csv's column
#: names, a netCDF's "posterior/w_j", "posterior/w_j.dims", "posterior/w_j@units", a safetensors' tensor names.
KEYS: list[tuple[str, str, str, Convert | None]] = [
    *(
        ("*.json", rf"(.*\b)?{old}", rf"\g<1>{new}", None)
        for old, new in (
            ("dropped_messages", "rejected_messages"),
            ("void_rounds", "skipped_rounds"),
            ("failed_local_steps", "diverged_local_steps"),
        )
    ),
    *((files, r"(.*\b)?idle", r"\g<1>absent_clients", ABSENT.get) for files in ("*config.toml", "*.json")),
    *(
        (files, rf"(.*\b)?{old}", rf"\g<1>{new}", None)
        for files in ("*config.toml", "*.json")
        for old, new in (
            ("client", "group"),
            ("error", "known_se"),
            ("test", "test_fraction"),
            ("validation", "validation_fraction"),
            ("noise", "response_sd"),
        )
    ),
    ("*metrics*.csv", r"(.*)dropped", r"\1rejected", None),
    ("*metrics*.csv", r"(.*)void", r"\1skipped", None),
    ("*metrics*.csv", r"(.*)failed", r"\1diverged", None),
    ("*metrics*.csv", r"(.*)moved_(.*)", r"\1update_norm_\2", None),
    ("*.npz", r"(.*)metrics\.dropped", r"\1metrics.rejected", None),
    ("*.npz", r"(.*)metrics\.void", r"\1metrics.skipped", None),
    ("*.npz", r"(.*)metrics\.failed", r"\1metrics.diverged", None),
    ("*.npz", r"(.*)metrics\.moved_(.*)", r"\1metrics.update_norm_\2", None),
    ("*.safetensors", r"server/memory/(.*)", r"server/rule_state/\1", None),
    ("*.safetensors", r"server/moved/(.*)", r"server/update_norm/\1", None),
    ("*.safetensors", r"server/void", r"server/skipped", None),
    ("*.safetensors", r"(personal|copies)/(.*)", r"engine/\1/\2", None),
    ("*.safetensors", r"reports", r"journal/status", None),
    ("*.safetensors", r"history/(.*)", r"journal/summaries/\1", None),
    ("*checkpoint.json", r"(metrics.*)dropped", r"\1rejected", None),
    ("*checkpoint.json", r"(metrics.*)void", r"\1skipped", None),
    ("*checkpoint.json", r"((?:metrics.*)?)failed", r"\1diverged", None),
    ("*checkpoint.json", r"(metrics.*)moved_(.*)", r"\1update_norm_\2", None),
    ("*checkpoint.json", r"fit\.idle", r"fit.absent_clients", ABSENT.get),
]
#: names of files in a case's folder, (pattern of the whole path, replacement), old -> new
FILES: list[tuple[str, str]] = []

#: what need not be the same (nor need paths of the folder itself): (glob of cases, glob of files, glob of keys, why)
EXEMPT: list[tuple[str, str, str, str]] = [
    ("*", "*", "*seconds*", "time"),
    ("*", "*posterior.nc", "*@created_at", "date"),
    ("*", "*posterior.nc", "*@*version*", "version"),
    ("*", "*.json", "*versions*", "versions"),
    ("*", "*config*", "*method_digest", "digest of the method's source file"),
    ("*", "*.json", "*method_digest*", "digest of the method's source file"),
    ("table/collect", "table/table.md", "line *", "names of the committed searches' settings"),
    ("*", "*participation*.png", "*", "words of its legend: absent, message rejected"),
    ("*", "*effects-*.png", "*", "words of its axis: clients, in order"),
    ("*", "*overview.png", "*", "the same words; the figures that it joins are compared one by one"),
    ("own/*", "*mine.py", "*", "the user's file itself: its imports and names"),
    ("*", "*/checkpoint.json", "digest", "of the tensors' file, which is compared itself"),
    ("*", "*.safetensors", "server/dropped", "a sum over journal/status, no longer held twice"),
    ("*", "*/checkpoint.json", "checksum", "of a file that holds seconds"),
    ("python/energy", "*whole.npz", "new-given*", "a fault before: a new client with examples"),
    ("pfedvem/prior-flat-float64", "*whole.npz", "new-given*", "a fault before: a new client with examples"),
    ("*/mixed*", "*comparison.md", "line 14", "a metric that is left out is called as everywhere: 90 % cover"),
    ("*", "*/checkpoint.json", "format", "3: a checkpoint from before is refused in one line"),
]
#: of an html page, what is taken out before it is compared (regular expressions), and why
HTML: list[tuple[str, str]] = [
    (r"(Of every place, the difference|The difference of every client) from the fixed effect", "words of a caption"),
    (
        r"<td>(idle|absent_clients|client|group|error|known_se|test|test_fraction|validation|validation_fraction|noise"
        r"|response_sd)</td>",
        "names of renamed options; their values are compared",
    ),
    (
        r"<td>(dropped_messages|rejected_messages|void_rounds|skipped_rounds|failed_local_steps|diverged_local_steps)</td>",
        "names of counts; their values are compared",
    ),
    (r"data:image/png;base64,[A-Za-z0-9+/=]*", "pictures: figures are compared themselves"),
    (r"<td>[^<]*seconds[^<]*</td>\s*<td>[^<]*</td>", "time"),
    (r"<td>[^<]*method_digest</td>\s*<td>[^<]*</td>", "digest of the method's source file"),
    (r"<td>[^<]*versions[^<]*</td>\s*<td>[^<]*</td>", "versions"),
    (
        r"<td>(w_0|init_scale|keeps|local_norm|refresh|bn_refresh_epochs|settle|newton_rounds|controls|control_variates"
        r"|memory|beta2)</td>",
        "settings under new names; their values are compared",
    ),
    (r"(to )?90 % cover left out", "a metric that is left out is called as everywhere"),
    (r"<td>(beta|server_lr)</td>\s*<td>[^<]*</td>", "one minus the other: compared in config.toml"),
]
#: where a renaming changes rounding: (glob of cases, glob of files, glob of keys, largest difference, why)
ROUNDING: list[tuple[str, str, str, float, str]] = [
    ("*", "*sizes.csv", "rank_correlation_with_n*", 1e-15, "Spearman from scipy"),
]
