"""A narrow ResNet-18 with group norm, trained on four classes of CIFAR-10; the other six are for clients.

Pictures are averaged to 16x16 pixels, which is what two minutes of one core are enough for.

    python -m hierfl.experiments.results.adapters.backbone --data-root DIR --out FOLDER

leaves ``backbone.safetensors`` (the network without its last layer) and ``clients.npz``, pictures of the other classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hierfl.nn.batch_norm_free import without_batch_norm
from hierfl.nn.networks.resnet import resnet18_layers

#: automobile, bird, dog, ship: what the backbone has seen
SEEN = (1, 2, 5, 8)
#: airplane, cat, deer, frog, horse, truck: what clients have
OTHERS = (0, 3, 4, 6, 7, 9)
WIDTH = 8
#: pictures of each class: of all clients together for training, and for tests
TRAIN, TEST = 100, 100
BATCH = 100


def pretrained(x: Tensor, y: Tensor, epochs: int, seed: int = 0) -> tuple[nn.Module, nn.Linear]:
    """The network and its last layer after so many passes.

    Args:
        x: pictures (n, 3, 16, 16), uint8.
        y: their classes (n,), 0, 1, ...
        epochs: passes.
        seed: of weights and minibatches.
    """
    torch.manual_seed(seed)
    net = without_batch_norm(resnet18_layers(3, WIDTH, small=True), "group")
    last = nn.Linear(8 * WIDTH, int(y.max()) + 1)
    values = [*net.parameters(), *last.parameters()]
    optimiser = torch.optim.AdamW(values, weight_decay=1e-2)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, steps)
    for epoch in range(epochs):
        right = 0
        for rows in torch.randperm(len(x))[: steps // epochs * BATCH].view(-1, BATCH):
            picture = scaled(x[rows])
            picture = picture.flip(-1) if torch.rand(()) < 0.5 else picture
            output = last(net(picture))
            loss = nn.functional.cross_entropy(output, y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            right += int((output.argmax(1) == y[rows]).sum())
        print(f"pass {epoch + 1}: {right / (steps // epochs * BATCH):.3f} of the training pictures", flush=True)
    return net, last


def scaled(x: Tensor) -> Tensor:
    """Pictures as clients of ``clients.npz`` scale them: uint8 to [0, 1]."""
    return x.float() / 255


def of_classes(x: np.ndarray, y: np.ndarray, classes: tuple[int, ...], number: int | None = None) -> tuple:
    """Pictures (n, 3, 16, 16) of these classes, the first ``number`` of each, and their positions in ``classes``."""
    places = [np.flatnonzero(y == c)[:number] for c in classes]
    labels = np.concatenate([np.full(len(p), k) for k, p in enumerate(places)])
    pictures = x[np.concatenate(places)]
    pictures = pictures if pictures.shape[1] == 3 else pictures.transpose(0, 3, 1, 2)
    four = pictures.reshape(len(pictures), 3, 16, 2, 16, 2).mean((3, 5))
    return four.round().astype(np.uint8), labels


def main() -> None:
    """Trains and writes."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data-root", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--epochs", type=int, default=6)
    given = arguments.parse_args()
    with np.load(given.data_root / "cifar10.npz", allow_pickle=False) as file:
        data = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    given.out.mkdir(parents=True, exist_ok=True)
    parts = {}
    for part, number in (("train", TRAIN), ("test", TEST)):
        x, y = of_classes(data[f"x_{part}"], data[f"y_{part}"].ravel(), OTHERS, number)
        parts |= {f"x_{part}": x, f"y_{part}": y}
    np.savez(given.out / "clients.npz", **parts)
    x, y = of_classes(data["x_train"], data["y_train"].ravel(), SEEN)
    net, last = pretrained(torch.from_numpy(x), torch.from_numpy(y), given.epochs)
    x, y = of_classes(data["x_test"], data["y_test"].ravel(), SEEN)
    with torch.no_grad():
        output = torch.cat([last(net(scaled(part))) for part in torch.from_numpy(x).split(500)])
    print(f"test pictures of the same classes: {float((output.argmax(1) == torch.from_numpy(y)).float().mean()):.3f}")
    save_file({key: value.detach().contiguous() for key, value in net.state_dict().items()},
              given.out / "backbone.safetensors")  # fmt: skip


if __name__ == "__main__":
    main()
