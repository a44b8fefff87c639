"""Networks of layers that are no flat chain: transformers on ids, series, residual networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hierfl.models as models
from hierfl import Federation
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.nn.adapters import low_rank
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.nn.networks.resnet import resnet18_layers

CLIENTS = np.repeat(["a", "b"], [9, 7])
#: methods with a shared, a personal and a cut network
METHODS = {"FedAvg": {}, "PFedVEM": {"head_epochs": 1, "base_epochs": 1}, "PFedHB": {"draws": 2}}


class Text(nn.Module):
    """Tokens, a transformer, and the mean over positions."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("position", torch.linspace(0, 1, 5)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.embedding(x) + self.position).mean(1)


def text() -> tuple[Federation, nn.Module]:
    ids = np.random.default_rng(0).integers(0, 7, (16, 5))
    return Federation.from_arrays(ids, ids[:, 0] % 2, CLIENTS, inputs="ids", test=0.25), Text()


def series() -> tuple[Federation, nn.Module]:
    x = np.random.default_rng(1).normal(size=(16, 2, 12)).astype(np.float32)
    module = nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 4)
    )
    return Federation.from_arrays(x, (x[:, 0].mean(1) > 0).astype(int), CLIENTS, test=0.25), module


def pictures() -> tuple[Federation, str]:
    x = np.random.default_rng(2).integers(0, 256, (16, 3, 9, 9)).astype(np.uint8)
    return Federation.from_arrays(x, np.arange(16) % 2, CLIENTS, test=0.25), "resnet18-small:1"


def network(federation: Federation, module: nn.Module | str) -> Architecture:
    if isinstance(module, str):
        return architecture(module, federation)
    return Architecture(Network(module), LinearHead(4, 2))


@pytest.mark.parametrize("kind", [text, series, pictures])
def test_methods_train_it(kind) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        federation, module = kind()
    net = network(federation, module)
    assert net.base.chain is None or kind is series
    for name, little in METHODS.items():
        run = fit(getattr(models, name)(net, **little), federation, rounds=1, progress=False, draws=1)
        moved = [k for k, v in net.base.init(torch.Generator()).items() if not torch.equal(run.shared[k], v.float())]
        assert moved
        assert np.isfinite(run.metrics["pm_nll"].iloc[-1])


def test_tokens_are_never_standardised() -> None:
    with torch.random.fork_rng(devices=[]):
        federation, _ = text()
    assert federation.mean is None
    assert federation.batch([0], "train").x.dtype == torch.int64


def test_attention_and_tokens_take_adapters() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        federation, module = text()
    net = Architecture(*low_rank(module, federation.template().x[0], 2, 1, ("encoder",)))
    assert {key.rpartition(".")[2] for key in net.head.sizes} == {"weight", "in_proj_weight"}
    run = fit(models.PFedVEM(net, **METHODS["PFedVEM"]), federation, rounds=1, progress=False, draws=1)
    start = net.head.begun(torch.ones(net.head.d))
    assert torch.isfinite(run.personal["mu"]).all()
    assert not torch.equal(run.personal["mu"][0, ..., : net.head.adapters_d].flatten(), start[: net.head.adapters_d])


def test_dropout_in_a_transformer_is_one_line() -> None:
    with torch.random.fork_rng(devices=[]), pytest.raises(UserError, match="dropout"):
        Network(Text(0.1))


def test_resnet_is_torchvisions() -> None:
    import torchvision

    with torch.random.fork_rng(devices=[]):
        theirs, ours = torchvision.models.resnet18(weights=None), resnet18_layers(3, 64, small=False)
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
    theirs.fc = nn.Identity()
    x = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=0)


def test_a_pretrained_networks_statistics_stay(tmp_path) -> None:
    federation, _ = pictures()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = resnet18_layers(3, 1, small=True)
        module(torch.randn(4, 3, 9, 9))
        state = {**module.state_dict(), "fc.weight": torch.zeros(10, 8), "fc.bias": torch.zeros(10)}
    torch.save(state, tmp_path / "pretrained.pt")
    net = architecture("resnet18-small:1,affine-norm", federation, weights=tmp_path / "pretrained.pt", head="frozen")
    x = torch.linspace(0, 1, 3 * 81).view(1, 1, 3, 9, 9)
    torch.testing.assert_close(net.base.apply({}, x)[0], module.eval()(x[0]))
    with pytest.raises(UserError, match="has batch norm, whose statistics resnet18-small:1,affine-norm keeps"):
        architecture("resnet18-small:1", federation, weights=tmp_path / "pretrained.pt")
    with pytest.raises(UserError, match="weights=FILE"):
        architecture("resnet18-small:1,affine-norm", federation)
