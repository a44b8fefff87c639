"""Named data sets: a file for each family, which registers its sets."""

from ...discovery import import_room

import_room(
    "data.datasets", __path__, first=("digits", "grey", "cifar", "sun397", "svhn_usps", "mnist_m", "synthetic_digits")
)
