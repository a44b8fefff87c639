"""Networks from their names: a file for each family, which registers its kinds."""

from ...discovery import import_room

import_room("nn.networks", __path__, first=("mlp", "cnn", "spec", "latent"))
