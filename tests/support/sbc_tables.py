"""CSV tables of the gallery, first data seed, in the folder where it is run: what `hierfl sbc` takes covariates of.

python tests/support/sbc_tables.py
"""

import importlib.util
from pathlib import Path

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
MODELS = ("eight_schools_noncentred", "radon", "negative_binomial", "meta_analysis", "poisson_glmm")

for name in MODELS:
    spec = importlib.util.spec_from_file_location(name, GALLERY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.data(0).to_csv(f"{name}.csv", index=False)
