"""The list of golden cases, in old names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Lines that are run in a folder of their own.

    Attributes:
        lines: of the command line; or "stop K run ...", "api NAME METHOD", "module NAME ...", "copy FROM TO";
            "@" is the folder of data.
        figures: whether pictures are drawn; else one pixel stands for each.
        fails: whether it ends in a UserError.
    """

    lines: tuple[str, ...]
    figures: bool = False
    fails: bool = False


CASES: dict[str, Case] = {}
LOCAL = ("local", "fedper", "fedrep", "lg-fedavg")
WHOLE = ("fedavg", "fedprox", "pfedme", "l2gd", "dg-lmc", "pfedbayes")
ONE_TERM = ("fedavg-ft", "perfedavg", "scaffold", "ifca", "ditto", "apfl")
#: whatever runs on vectors
VECTORS = ("pfedvem", "fedpop", "pfedv", "fedv", "pfedvmp", *LOCAL, *WHOLE, *ONE_TERM)
#: what makes three rounds of a method short
SHORT = {"fedpop": "--set final_steps=60 --set final_keep=10", "mixed-effects": "--set draws=10 --set chains=3"}
BLOBS, LINES, PICTURES = ("--data @blobs.npz --network mlp:5", "--data @lines.npz --network mlp:4",
                          "--data @pictures.npz")  # fmt: skip
PRIORS = ("hierarchical", "fixed", "flat")
ROUNDS, HALF = "-T 3 -q --out run", "--participation 0.5 --seed 1"


def add(name: str, *lines: str, figures: bool = False, fails: bool = False) -> None:
    """Adds a case."""
    assert name not in CASES, name
    CASES[name] = Case(lines, figures, fails)


def fit(method: str, *more: str, data: str = BLOBS) -> str:
    """A run of three rounds on the blobs."""
    short = "" if "final_steps" in " ".join(more) else SHORT.get(method, "")
    return " ".join(("run", method, data, ROUNDS, short, *more))


def plain(words: str) -> str:
    """What names a case's folder."""
    return words.replace(" ", ",").replace(":", "-")


def settings(pairs: str) -> str:
    """``a=1 b=2`` as options."""
    return " ".join(pair if pair.startswith("--") else f"--set {pair}" for pair in pairs.split())


# -- every method: everyone, some, absent clients, plates, a stop, shipped settings, figures, Python -----------------
for m in (*VECTORS, "fedbn"):
    d = BLOBS if m != "fedbn" else f"{PICTURES} --network bncnn:2,3:4"
    add(f"{m}/all", fit(m, data=d))
    add(f"{m}/half", fit(m, HALF, data=d))
    add(f"{m}/rest", fit(m, HALF, "--idle rest -T 4 --evaluate-every 3", data=d))
    add(f"{m}/never", fit(m, HALF, "--idle never --evaluate-every 2", data=d))
    add(f"{m}/chunk-1", fit(m, HALF, "--chunk 1", data=d))
    add(f"{m}/chunk-3", fit(m, HALF, "--chunk 3", data=d))
    add(f"{m}/resumed", f"stop 3 {fit(m, HALF, data=d)}", "run --resume run -q")
    add(f"{m}/python", f"api fit {m}")
    if m not in ("fedbn", "pfedvmp"):  # (which need pictures, and labels)
        add(f"{m}/regression", fit(m, HALF, "--noise 0.5", data=LINES))
for m in VECTORS:
    add(f"{m}/digits", f"run {m} -J 6 --split pathological:2,each=15 --network mlp:6 -T 2 -q --out run")
for m in ("pfedvem", "fedpop", "pfedv", "pfedvmp", "fedrep"):
    add(f"{m}/figures", fit(m, HALF), "report run -q", figures=True)
add("apfl/figures", fit("apfl", HALF), "report run -q --no-features", figures=True)

# -- priors ------------------------------------------------------------------------------------------------------------
for m in ("pfedvem", "fedpop", "pfedv", "fedv", "pfedvmp"):
    for prior in PRIORS:
        add(f"{m}/prior-{prior}", fit(m, HALF, f"--prior {prior}"))
        add(f"{m}/prior-{prior}-float64", f"api fit {m} prior={prior}")

# -- settings that choose a path ---------------------------------------------------------------------------------------
SWITCHES = {
    "pfedvem": ("tau=uncertainty", "tau=deviation", "beta=0.3", "momentum=0 particles=1 head_epochs=2", "base_epochs=0",
                "base_batch=100", "w_0=1 sigma_0=1 head_lr=0.01 base_lr=0.05"),
    "fedpop": ("kernel=metropolis", "start=stateless", "kernel=metropolis start=stateless chains=2",
                "controls=true chains=20 steps=25 --network=mlp:1",
               "population=diagonal", "population=energy", "population=energy energy_hidden=3", "step_batch=4",
               "mu_scale=0.5 base_decay=0.01 lr_decay=0.9 memory=0.9", "chains=3 burn=2 steps=6",
               "inner_phi_steps=2", "inner_phi_steps=2 inner_batch=4 inner_momentum=0.9", "compress=quantise:4",
               "compress=sparsify:0.3", "compress=quantise:4 inner_phi_steps=1", "final_steps=0",
               "kernel=metropolis chains=4 final_steps=100 final_keep=20"),
    "pfedv": ("kl=sum", "prior_norm=running", "sd_min=0.1", "momentum=0.9 epochs=2", "alpha=0.05 batch=5"),
    "fedv": ("kl=sum", "prior_norm=running", "sd_min=0.1"),
    "pfedvmp": ("precision=diagonal", "precision=count", "precision=equal", "distance=sum", "prior_precision=1",
                "alpha=0.1 cutoff=0.01 xi=5", "momentum=0.9"),
    "local": ("momentum=0", "batch=100 epochs=2"),
    "fedper": ("beta=0.3", "momentum=0"),
    "fedrep": ("beta=0.3", "head_epochs=1", "head_epochs=0"),
    "lg-fedavg": ("beta=0.3",),
    "fedavg": ("beta=0.3", "momentum=0", "w_0=0"),
    "fedprox": ("beta=0.3", "mu=1", "momentum=0"),
    "pfedme": ("beta=0.5", "beta=2 rounds=3 steps=2"),
    "l2gd": ("p=0.1", "p=0.9 lam=2"),
    "dg-lmc": ("batch=4", "burn=1 keep=5", "rho=0.5 steps=5 keep=2"),
    "pfedbayes": ("particles=3 batch=4", "beta=0.5", "zeta=0.1 lr=0.01"),
    "fedavg-ft": ("scope=all", "beta=0.3", "ft_epochs=0"),
    "perfedavg": ("ft_steps=2", "ft_epochs=0", "difference=0.1 steps=3"),
    "scaffold": ("server_lr=0.5",),
    "ifca": ("scope=all", "clusters=3", "beta=0.3", "clusters=1"),
    "ditto": ("beta=0.3", "lam=0.1", "momentum=0"),
    "apfl": ("alpha_lr=0", "beta=0.3", "alpha=0.9 alpha_lr=0.1"),
}  # fmt: skip
for m, several in SWITCHES.items():
    for pairs in several:
        add(f"{m}/{plain(pairs)}", fit(m, HALF, settings(pairs)))
        if m == "fedpop":
            add(f"{m}/resumed,{plain(pairs)}",
                f"stop 3 {fit(m, HALF, settings(pairs))}", "run --resume run -q")  # fmt: skip
BN = f"{PICTURES} --network bncnn:2,3:4"
for m, several in {
    "fedbn": ("keeps=statistics", "beta=0.3", "refresh=2", "keeps=statistics refresh=1"),
    "pfedv": ("keeps=statistics", "keeps=all", "keeps=statistics refresh=2", "prior_norm=running keeps=all"),
    "fedv": ("keeps=statistics", "keeps=all refresh=1"),
}.items():
    for pairs in several:
        add(f"{m}/pictures,{plain(pairs)}", fit(m, HALF, settings(pairs), data=BN))

# -- networks, likelihoods, splits -------------------------------------------------------------------------------------
NETWORKS = ("linear", "mlp:5,4", "mlp:5,dropout=0.3", "mlp:5,leaky=0.1")
for network in NETWORKS:
    for m in ("pfedvem", "fedavg", "fedpop", "ditto"):
        add(
            f"network/{plain(network)}-{m}",
            fit(m, HALF, data=f"--data @blobs.npz --network {network}"),
        )
for network in ("cnn:2,3:5", "cnn:2,3:5,dropout=0.3,leaky=0.1", "convnet:2,3,4", "bncnn:2,3:4"):
    for m in ("pfedvem", "fedrep", "fedavg", "pfedvmp", "scaffold", "pfedv"):
        if not (m == "pfedv" and "dropout" in network):
            add(f"network/{plain(network)}-{m}", fit(m, HALF, data=f"{PICTURES} --network {network}"))
add(
    "network/mlp-5,4-lg-fedavg",
    fit("lg-fedavg", HALF, settings("top=2"), data="--data @blobs.npz --network mlp:5,4"),
)
for m in ("pfedv", "fedv"):
    add(f"network/z-norm-{m}", fit(m, HALF, data="--data @blobs.npz --network mlp:5,z-norm"))
    add(f"network/bncnn-z-norm-{m}", fit(m, HALF, data=f"{BN},z-norm"))
for m in ("fedpop", "pfedvem", "fedavg"):
    add(f"network/projection-{m}", fit(m, data="--data @lines.npz --network projection:2"))
    add(f"fedpop-synthetic/{m}", f"run {m} --data fedpop-synthetic -T 2 -q --out run {SHORT.get(m, '')}")
for split in ("label-skew:1", "label-skew-equal:1", "label-skew-unbalanced:2", "label-skew-unbalanced:3,redraw",
              "concept-drift", "concept-drift-equal", "concept-drift-unbalanced", "dirichlet:0.5",
              "dirichlet:0.3,redraw",
              "pathological:2,each=20", "classes:2", "shards:2", "random-slicing", "equal", "iid"):  # fmt: skip
    more = f"--data @pool.npz --network mlp:3 -J {4 if split.startswith('concept') else 5}"
    add(f"split/{plain(split)}", fit("fedrep", f"-T 1 --split {split}", data=more))

# -- options of a run --------------------------------------------------------------------------------------------------
for name, more in {
    "quorum": "--participation 0.3 --quorum 3 --seed 2", "ratio-1": "--max-message-ratio 1 --seed 1",
    "no-ratio": "--max-message-ratio 0", "draws": "--draws 3", "ood": "--ood @strange.npz",
    "validation-0": "--validation 0", "validation-third": "--validation 0.3",
    "evaluate-every": "--evaluate-every 2 -T 5", "no-observed": "--no-observed-data", "no-rounds": "-T 0",
    "seed": "--seed 12345",
}.items():  # fmt: skip
    for m in ("pfedvem", "fedpop", "fedavg", "l2gd", "fedrep"):
        add(f"options/{name}-{m}", fit(m, more))
for m, pairs in {"pfedvem": "base_lr=1e6", "fedavg": "lr=1e5", "fedpop": "step_size=1e30", "ditto": "lr=1e5",
                 "scaffold": "lr=1e5", "pfedv": "lr=1e6", "fedrep": "lr=1e5", "pfedme": "w_lr=1e6",
                 "dg-lmc": "step_size=1.0", "apfl": "lr=1e5", "l2gd": "lr=1e6"}.items():  # fmt: skip
    add(f"diverged/{m}", fit(m, HALF, settings(pairs)))
    add(f"diverged/{m}-no-ratio", fit(m, HALF, "--max-message-ratio 0", settings(pairs)))
    add(f"diverged/{m}-never", fit(m, HALF, "--idle never", settings(pairs)))

# -- mixed models ------------------------------------------------------------------------------------------------------
TABLE = "run mixed-effects --data @{} -q --out run -T 5 --evaluate-every 2 {} {}"
for name, (table, formula, more) in {
    "gauss": ("gauss.csv", "y ~ 1 + x + (1 + x | site)", ""),
    "gauss-intercept": ("gauss.csv", "y ~ 1 + x + (1 | site)", "--test 0.3 --validation 0.1"),
    "gauss-separate": ("gauss.csv", "y ~ 1 + x + (1 | site) + (0 + x | site)", "--set covariance=diagonal"),
    "gauss-diagonal": ("gauss.csv", "y ~ 1 + x + (1 + x | site)", "--set covariance=diagonal"),
    "gauss-factor": ("gauss.csv", "y ~ kind * x + (1 | site)", ""),
    "gauss-spline": ("gauss.csv", "y ~ x + bs(t, df=4) + (1 | site)", ""),
    "gauss-poly": ("gauss.csv", "y ~ poly(t, 2) + scale(x) + (1 | site)", ""),
    "gauss-half": ("gauss.csv", "y ~ 1 + x + (1 + x | site)", HALF),
    "gauss-fixed": ("gauss.csv", "y ~ 1 + x + (1 + x | site)", "--prior fixed --set sd_0=0.5"),
    "gauss-settle": ("gauss.csv", "y ~ 1 + x + (1 + x | site)", "--set settle=2 --chunk 5"),
    "known": ("known.csv", "y ~ 1 + x + (1 | site)", "--error se"),
    "known-half": ("known.csv", "y ~ 1 + (1 | site)", f"--error se {HALF}"),
    "binomial": ("binary.csv", "y ~ 1 + x + (1 | site)", "--family binomial"),
    "binomial-half": ("binary.csv", "y ~ 1 + x + (1 + x | site)", f"--family binomial --test 0.2 {HALF}"),
    "binomial-fixed": ("binary.csv", "y ~ 1 + x + (1 | site)", "--family binomial --prior fixed"),
    "poisson": ("counts.csv", "y ~ 1 + x + (1 | site)", "--family poisson"),
    "poisson-half": ("counts.csv", "y ~ 1 + x + (1 + x | site)", f"--family poisson --idle never {HALF}"),
    "poisson-chunk": ("counts.csv", "y ~ 1 + x + (1 | site)", "--family poisson --chunk 1 --set settle=1"),
}.items():
    line = TABLE.format(table, f"--formula '{formula}' {more}", SHORT["mixed-effects"])
    add(f"mixed/{name}", line)
    if name in ("gauss", "known-half", "binomial-half", "poisson-half"):
        add(f"mixed/{name}-resumed", f"stop 3 {line}", "run --resume run -q")
    if name in ("gauss", "binomial", "poisson"):
        add(f"mixed/{name}-figures", line, "report run -q", figures=True)
add("mixed/eight-schools", "run mixed-effects --data eight-schools -T 10 -q --out run")
add("mixed/radon-like", "run mixed-effects --data radon-like -T 4 -q --out run --set draws=4 --set chains=2")
add("mixed/no-draws", TABLE.format("gauss.csv", "--formula 'y ~ x + (1 | site)'", "--set draws=0"))
for family, table in (("gaussian", "gauss"), ("binomial", "binary"), ("poisson", "counts")):
    add(f"mixed/python-{family}", f"api mixed {family} {table}")

# -- Python, files of one's own, other commands ------------------------------------------------------------------------
for m in ("pfedvem", "fedpop", "fedrep", "pfedv", "ditto", "dg-lmc"):
    add(f"python/regression-{m}", f"api regression {m}")
add("python/energy", "api fit fedpop population=energy")
add("own/student-t", "copy student_t.py mine.py", fit("mine.py", HALF))
add("own/student-t-resumed", "copy student_t.py mine.py", f"stop 3 {fit('mine.py', HALF)}", "run --resume run -q")
add("own/subclass", "copy subclass.py mine.py", fit("mine.py", HALF, settings("lr=0.05")))
for m in ("pfedvem", "fedavg", "local", "fedpop"):
    add(f"compare/two-{m}", f"run {m} {BLOBS} -T 3 -q --out a/run {SHORT.get(m, '')}",
        f"run fedrep {BLOBS} -T 3 -q --out b/run",
        "compare a/run b/run --out comparison -q", figures=m == "pfedvem")  # fmt: skip
add("compare/loo", *(f"run pfedvem {BLOBS} -T 2 -q --out {p}/run --prior {p}" for p in PRIORS),
    "compare hierarchical/run fixed/run --loo --out with -q",
    "compare hierarchical/run fixed/run flat/run --no-loo --out without -q", "report without -q")  # fmt: skip
GROWN = TABLE.format("gauss.csv", "--formula 'y ~ 1 + x + (1 | site)' --test 0.3", "{}")
add("compare/mixed", GROWN.format("--out a"), GROWN.format("--out b --prior fixed"), "compare a b --out comparison -q")
for m in ("pfedvem", "fedpop", "pfedvmp"):
    add(
        f"ablate/{m}",
        f"ablate {m} {BLOBS} -T 2 --seeds 2 --scales 0.1,1 --out out -q {SHORT.get(m, '')}",
        "module ablations out --out ablations.md",
    )
add("ablate/pfedv", f"ablate pfedv {BLOBS} -T 1 --seeds 1 --choose-seeds 0 --out out -q")
add("ablate/mixed-effects", "ablate mixed-effects --data @gauss.csv --formula 'y ~ x + (1 | site)' -T 3 "
    "--seeds 1 --scales 0.5,1 --out out -q --set draws=10 --set chains=2")  # fmt: skip
add("tune/grid", f"tune pfedvem head_lr=1e-3,1e-2 sigma_0=0.1,1 {BLOBS} -T 2 --budget 3 --seeds 2 --out found.json -q")
add("tune/published", f"tune fedper {BLOBS} -T 2 --budget 2 --by pm_accuracy --settle 2 --out found.json -q")
add("tune/beta", f"tune fedavg beta=0,0.5 {BLOBS} -T 2 --budget 2 --out found.json -q")
add("table/collect", "table pfedvem-1 --data fashion-mnist -J 4 --methods local,pfedvem --seeds 1 --data-root @ "
    "--out table -q",
    "table pfedvem-1 --data fashion-mnist -J 4 --collect --data-root @ --out table -q")  # fmt: skip
TWO = (f"run pfedvem {BLOBS} -T 2 -q --out p0 --seed 0", f"run pfedvem {BLOBS} -T 2 -q --out p1 --seed 1",
       f"run fedavg {BLOBS} -T 2 -q --out f0")  # fmt: skip
add("modules/collect", *TWO, "module collect p0 p1 f0 --out collected.json")
add("modules/cost", *TWO, "module cost p0 f0 --out cost")
add("modules/choose", "module choose pfedvem head_lr=1e-3,1e-2 --data @blobs.npz --network mlp:4 --rounds 2 "
    "--seeds 2 --against head_lr --out choose.json")  # fmt: skip
add("refused/prior", fit("fedavg", "--prior flat"), fails=True)
add("refused/setting", fit("fedavg", settings("nothing=1")), fails=True)
add("refused/other-data", fit("fedavg"), "run --resume run -q --data @strange.npz", fails=True)
