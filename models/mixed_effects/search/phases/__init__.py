"""Phases of the search for the population, one a file; they run in the order of :data:`.loop.PHASES`."""
