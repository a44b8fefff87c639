"""The tables and figures of the papers, a toml file each; see :mod:`hierfl.experiments.papers.definition`."""
