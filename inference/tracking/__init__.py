"""Experiment trackers: metrics of a run, while it runs, where others watch theirs."""
