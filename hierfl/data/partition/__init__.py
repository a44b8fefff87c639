"""How one data set is cut into clients: a file for each kind of heterogeneity, which registers its splits."""

from ...discovery import import_room

import_room(
    "data.partition", __path__,
    first=("label_skew", "concept_drift", "dirichlet", "pathological", "classes", "shards", "quantity", "domains"),
)  # fmt: skip
