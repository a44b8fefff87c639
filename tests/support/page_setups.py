"""What the blocks of a page take for granted: small data, methods and runs, made before its first block."""

from __future__ import annotations

DATA = """
import numpy as np, pandas as pd, torch
import hierfl
from hierfl import Federation, fit
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture
rng = np.random.default_rng(0)
y = np.tile(np.arange(3), 80)
x = (rng.normal(size=(240, 4)) + 2 * np.eye(4)[y]).astype("float32")
client = np.repeat(["3", "12", "17", "20"], 60)
federation = Federation.from_arrays(x, y, client, validation=0.2)
method = PFedVEM(architecture("linear", federation))
"""
TABLE = """
import numpy as np, pandas as pd
import hierfl
rng = np.random.default_rng(0)
df = pd.DataFrame({"site": np.repeat([f"s{j}" for j in range(12)], 20), "x": rng.normal(size=240).round(3)})
df["arm"] = np.tile(["a", "b"], 120)
df["sex"] = np.tile(["f", "f", "m", "m"], 60)
"""
#: by page: a program that runs before the page's own blocks
SETUPS = {
    "calibration": DATA + "x = x[:5]\n",
    "come-back": DATA
    + """
from pathlib import Path
x_few, y_few, new = x[:6], y[:6], x[:5]
hierfl.fit(method, federation, rounds=2, folder="runs/0001-pfedvem-digits", progress=False)
x = torch.as_tensor(new)
""",
    "compare": DATA
    + """
from pathlib import Path
from hierfl.models.baselines.fedrep import FedRep
for name, one in (("0001-pfedvem", method), ("0002-fedrep", FedRep(architecture("linear", federation)))):
    hierfl.fit(one, federation, rounds=2, folder=f"runs/{name}-digits", progress=False)
""",
    "data": DATA
    + """
from PIL import Image
from sklearn.model_selection import GridSearchCV
mine = [(name, x[client == name], y[client == name]) for name in np.unique(client)]
df = pd.DataFrame({"hospital": client, "age": x[:, 0], "severity": x[:, 1], "stay": x[:, 2]})
np.savez("mine.npz", x_train=x, y_train=y, x_test=x[:60], y_test=y[:60])
for number in range(24):
    folder = Path("photos", f"p{number % 2}", str(number // 2 % 2))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
X, hospital = x, client
""".replace("from PIL", "from pathlib import Path\nfrom PIL", 1),
    "extend": DATA,
    "figures": """
import sys
sys.path.insert(0, "docs/gallery")
from eight_schools import data
data().to_csv("schools.csv", index=False)
""",
    "mixed-effects": TABLE
    + """
df["pressure"] = 120 + 5 * rng.normal(size=240)
level = pd.Series(rng.normal(size=12), index=[f"s{j}" for j in range(12)])
df["y"] = (rng.random(240) < 1 / (1 + np.exp(-df.x - df.site.map(level)))).astype(int)
df["count"] = rng.poisson(np.exp(0.3 * df.x)) * (rng.random(240) < 0.7)
smaller = hierfl.mixed_model(df, "y ~ x + (1 + x | site)", family="binomial")
""",
    "pfedhb": DATA
    + """
from hierfl.models.pfedhb import PFedHB
run = fit(PFedHB(architecture("linear", federation)), federation, rounds=2, progress=False)
x = torch.as_tensor(x[:5])
""",
    "pfedvmp": """
import torch
z_one, z_two, z_three = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(0)).double()
from hierfl.ppl.gaussian_factors import sample_factor
two, three = (sample_factor(z, "full", alpha=1.0, cutoff=6e-5) for z in (z_two, z_three))
otherwise = torch.zeros(2).double()
""",
    "reading-tables": """
import numpy as np
rng = np.random.default_rng(0)
rows = ["y;children;arm;visit;ward"]
for i in range(120):
    y = f"{rng.normal():.2f}".replace(".", ",")
    children, arm = ["0", "1", "2", "3+"][i % 4], ["placebo", "drug"][i // 4 % 2]
    rows.append(f"{y};{children};{arm};{i % 28 + 1:02d}.03.2024;w{i % 8}")
open("excel.csv", "w").write("\\n".join(rows) + "\\n")
""",
    "running": DATA
    + """
import pyro, pyro.distributions as dist
import matplotlib
matplotlib.use("agg")
from matplotlib import pyplot
from torch.distributions import constraints
df = pd.DataFrame({"ward": client, "effect": x[:, 0]})

def model(batch):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, 1.0), obs=batch["effect"])

guide = "diagonal"
federation = Federation.from_arrays(x, y, np.repeat([str(j) for j in range(1, 21)], 12), validation=0.0)
method = PFedVEM(architecture("linear", federation))
run = fit(method, federation, rounds=2, progress=False)
x_few, y_few = x[:6], y[:6]
ten = np.tile(np.arange(10), 192)
np.savez("mine.npz", x_train=np.repeat(x, 8, 0), y_train=ten, x_test=x, y_test=ten[:240])
x, ax = torch.as_tensor(x[:5]), pyplot.figure().gca()
""",
    "start-engineer": """
from pathlib import Path
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8) * 15).astype(np.uint8)
for number, (image, label) in enumerate(zip(images[:40], labels)):
    folder = Path("new-phone/phone-20") if number < 20 else Path("labelled/phone-20", str(label))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / f"{number}.png")
""",
}
