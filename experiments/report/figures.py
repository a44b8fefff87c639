"""The pictures of a folder, the sections they stand in, and their captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: parts of a run's page: heading, and what begins the names of its pictures
PARTS = {
    "Over rounds": ("rounds", "movement", "density"),
    "Clients": ("sizes", "clients", "histogram", "confidence", "entropy"),
    "Calibration": ("reliability",),
    "Population and clients": ("forest", "effects", "shrinkage"),
    "Chains": ("mixing", "trace", "rank", "ess"),
    "Posterior-predictive checks": ("predictive",),
    "Features": ("features",),
}
#: what stands below pictures whose titles do not say it all
CAPTIONS = {
    "rounds": "On the clients' test data, after the rounds that were evaluated.",
    "movement": "How far the values that the server owns moved in a round.",
    "histogram": "How many clients have so many training examples.",
    "confidence": "How much the server believes a client, against the client's size.",
    "confidence-deviation": "How far its model lies from the population's, against how much the server believes it.",
    "entropy": "How unsure every client's model is of its own test data, and of data that it was not made for.",
    "reliability": "Right as often as it says: on the diagonal. The larger a point, the more predictions.",
    "effects": "Of every place, the difference from the fixed effect.",
    "shrinkage": "A client's coefficient by its own data alone, and by the hierarchical model, which shrinks it to the "
    "population's, the more, the fewer rows the client has. Pooled: by all data as one, where clients do not differ.",
    "features": "Test data of all clients in the network's last hidden layer.",
    "participation": "A row for each client, a column for each round.",
    "gain": "Of the first over each other, mean over clients; positive where the first is better.",
    "size": "A point for each client and seed.",
    "three": "Each client's test metric in one seed: of its own model alone, of one model for all, and of the first.",
    "cost": "What has been sent until then.",
    "density-tau": "Share of every client in the sum of all confidences, in some rounds (pFedVEM, Figure 10).",
    "density-deviation": "Distance of every client's model from the population's mean, squared, over how many numbers "
    "it has, in some rounds (pFedVEM, Figure 11).",
    "sizes": "Each client's personal model on its own test data.",
    "reliability-clients": "The worst is the one with the largest ECE, of those with 20 test examples and more.",
    "forest": "The number in which clients differ most, of those the guide has of each: highest-density 90 % and "
    "central half. The population is what a client without data would be given.",
    "mixing": "Each client's number that mixed worst. Weights of a network can be exchanged for others that predict "
    "the same: where R-hat is large, look at predictions before draws.",
    "trace": "The number with the largest R-hat of all.",
    "rank": "Level bars: the chains draw from the same distribution.",
    "ess": "Straight lines: longer chains would give more.",
    "predictive-check": "Training data, which the models have seen: a fit that cannot even draw these is wrong; one "
    "that can may still be.",
    "predictive-check-clients": "Of each client the mean of its training data (of labels: the share of its commonest "
    "one), beside what its own model draws.",
}


def pictures_of(folder: Path) -> list[tuple[str, Path]]:
    """The single pictures of a folder; what joins several is left out."""
    found = sorted((folder / "figures").glob("*.png"))
    return [(p.stem.replace("-", " "), p) for p in found if p.stem not in ("overview", "features", "posterior")]


def caption(name: str, path: Path) -> str:
    """What stands below a picture."""
    return CAPTIONS.get(path.stem) or CAPTIONS.get(path.stem.partition("-")[0]) or name


def pictures_named(pictures: Sequence[tuple[str, Path]], starts: Sequence[str]) -> list[tuple[str, Path]]:
    """Those whose names begin so, in this order."""
    return [p for start in starts for p in pictures if p[1].stem.partition("-")[0] == start]
