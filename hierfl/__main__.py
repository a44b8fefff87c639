"""``python -m hierfl``: the command line. The one door upwards on the ground floor."""

from __future__ import annotations

from hierfl.experiments.cli import main

if __name__ == "__main__":
    main()
