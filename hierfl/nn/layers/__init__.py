"""Layers whose weights may belong to clients: a file for each kind, which registers it."""

from ...discovery import import_room

import_room("nn.layers", __path__)
