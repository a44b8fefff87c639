"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..readers.cifar import read_batch, read_names
from ..readers.limits import reading
from .registry import CNN, DEEP_CNN
from .torchvision_layout import Images, Layout, image_set


def _cifar10(root: Path) -> Images:
    """CIFAR-10 (Krizhevsky, 2009)."""
    folder = root / "cifar-10-batches-py"
    parts = [read_batch(folder / f"data_batch_{k}", "labels") for k in range(1, 6)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Images(x, y, *read_batch(folder / "test_batch", "labels"))


def _cifar100(root: Path) -> Images:
    """CIFAR-100 (Krizhevsky, 2009): the superclass is the label."""
    folder = root / "cifar-100-python"
    (x, fine), (x_test, fine_test) = (read_batch(folder / part, "fine_labels") for part in ("train", "test"))
    coarse = {name: number for number, names in enumerate(CIFAR100.values()) for name in names}
    names = read_names(folder / "meta", "fine_label_names")
    with reading(folder / "meta", "file of CIFAR-100's names"):
        superclass = np.array([coarse[name] for name in names])
        both = np.concatenate([fine, fine_test])
        if both.size and not 0 <= both.min() <= both.max() < len(superclass):
            raise ValueError(f"it has {len(superclass)} names for labels {both.min()}..{both.max()}")
        return Images(x, superclass[fine], x_test, superclass[fine_test], fine, fine_test)


def _fetch_cifar(kind: str) -> Callable[[Any, Path], None]:
    def fetch(sets: Any, root: Path) -> None:
        source = getattr(sets, kind)
        sets.utils.download_and_extract_archive(source.url, str(root), filename=source.filename, md5=source.tgz_md5)

    return fetch


#: CIFAR-100's superclasses and their classes, both in the order of their numbers
CIFAR100 = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}


image_set(
    "cifar10", "32x32 colour photographs, 10 classes, 60,000 images",
    Layout(
        _cifar10, _fetch_cifar("CIFAR10"), lambda sets: [sets.CIFAR10.url], "cifar-10-batches-py",
        "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch", "170 MB",
    ),
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), network=CNN,
)  # fmt: skip
image_set(
    "cifar100", "32x32 colour photographs, 20 superclasses of 5 subclasses, 60,000 images",
    Layout(
        _cifar100, _fetch_cifar("CIFAR100"), lambda sets: [sets.CIFAR100.url], "cifar-100-python",
        "cifar-100-python/ with train, test, meta", "169 MB", subclasses=True,
    ),
    ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)), network=DEEP_CNN, split="concept-drift",
)  # fmt: skip
