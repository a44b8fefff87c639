"""Figures: a file for each kind. Those that a report shows are registered by their drawing functions."""

from ..discovery import import_room

import_room("plots", __path__)
