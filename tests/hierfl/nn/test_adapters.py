"""Low-rank adapters of a network that does not move, as heads."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from support.federations import blobs
from torch import Tensor, nn
from torch.func import functional_call

import hierfl.models as models
from hierfl import Federation, fit
from hierfl.errors import UserError
from hierfl.experiments.run_folder.load import load_run
from hierfl.nn.adapters import LowRankHead, a_name, low_rank
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks import written
from hierfl.nn.networks.build import architecture
from hierfl.nn.networks.spec import module_of
from hierfl.ppl.restrict import Restrict

#: settings of short fits; FedPer is FedRep in one step
LITTLE = {
    "FedAvg": {}, "FedRep": {"head_epochs": 1}, "Local": {}, "PFedVMP": {}, "PFedV": {},
    "PFedVEM": {"head_epochs": 2, "base_epochs": 1}, "FedPop": {"final_steps": 8, "final_keep": 4},
}  # fmt: skip


@pytest.fixture
def federation() -> Federation:
    return blobs([12, 7, 9])


@pytest.fixture
def path(federation: Federation, tmp_path) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module, _ = module_of("mlp:6,5", torch.Size(federation.event_shape))
    save_file(module.state_dict(), tmp_path / "network.safetensors")
    return str(tmp_path / "network.safetensors")


def picture_module() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.Flatten()
        return nn.Sequential(OrderedDict(zip("abcdef", (*layers, nn.Linear(24, 5)), strict=True))).double()


def merged(module: nn.Module, head: LowRankHead, a: dict[str, Tensor], w: Tensor, x: Tensor) -> Tensor:
    """Outputs of one client: the plain module with W + B A in it, and its last layer."""
    values, at = dict(module.named_parameters()), 0
    for key, (rows, rank) in head.sizes.items():
        b = w[at : at + rows * rank].view(rows, rank)
        at += rows * rank
        values[key] = values[key] + (b @ a[a_name(key)]).view(values[key].shape)
    z = functional_call(module, values, (x,))
    return z @ w[at:-3].view(3, -1).mT + w[-3:]


@pytest.mark.parametrize(("layers", "first"), [((), 0), (("d", "f"), 3)])
def test_outputs_are_those_of_a_module_with_the_product_added(layers: tuple[str, ...], first: int) -> None:
    module, rng = picture_module(), torch.Generator().manual_seed(0)
    x = torch.randn((2, 4, 2, 7, 7), generator=rng, dtype=torch.float64)
    base, head = low_rank(module, x[0, :1], 3, 2, layers)
    assert base.module.first == first
    a = {k.removeprefix("base."): torch.randn(2, 1, *v.shape, generator=rng, dtype=torch.float64)
         for k, v in base.init(rng).items()}  # fmt: skip
    w = torch.randn((3, 2, 1, head.d), generator=rng, dtype=torch.float64)
    wanted = torch.stack([
        torch.stack([merged(module, head, {k: v[j, 0] for k, v in a.items()}, w[k, j, 0], x[j]) for j in range(2)])
        for k in range(3)
    ])  # fmt: skip
    with Restrict({f"base.{k}": v for k, v in a.items()}):
        z = base(x)
        torch.testing.assert_close(head(w, z), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(head(w[1], z), wanted[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(head(w, z.expand(3, *z.shape)), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(head(w[1], z.expand(3, *z.shape))[2], wanted[1], rtol=1e-12, atol=1e-12)
        start = head.begun(torch.ones(head.d, dtype=torch.float64))
        plain = module(x[0]).sum(-1, keepdim=True).expand(-1, 3) + 1
        torch.testing.assert_close(head(start, z)[0], plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LITTLE)
def test_a_method_trains_adapters_and_leaves_the_network(name: str, federation: Federation, path: str) -> None:
    cls = getattr(models, name)
    net = architecture("mlp:6,5", federation, latent=cls.latent, head="lora:2:3", weights=path)
    run = fit(cls(net, **LITTLE[name]), federation, rounds=1, progress=False, draws=2)
    values = {**run.shared, **run.personal}
    (moved,) = [v for k, v in values.items() if k == "base.A.3_weight"]
    assert not torch.equal(moved.squeeze().float(), net.base.module.A["3_weight"].expand_as(moved).squeeze())
    numbers = [v for v in values.values() if v.shape[-1] == net.head.d]
    assert numbers
    assert all(bool((v[..., : net.head.adapters_d] != 0).any()) for v in numbers)
    assert set(run.shared) | set(run.personal) >= {"base.A.3_weight"}
    assert not [k for k in values if k.endswith(("1_weight", "3.weight", "network.1.weight"))]
    assert run.metrics["pm_nll"].iloc[-1] < 5
    x = federation.x[federation.test[0][:3]]
    assert torch.isfinite(torch.as_tensor(run.predict(x, client=0))).all()


def test_clients_do_not_depend_on_who_shares_their_plate(federation: Federation, path: str) -> None:
    net = architecture("mlp:6,5", federation, head="lora:2", weights=path)
    runs = [
        fit(models.PFedVEM(net, head_epochs=2, base_epochs=1), federation, rounds=2, progress=False, draws=2,
            chunk=chunk, dtype=torch.float64)
        for chunk in (1, 3)
    ]  # fmt: skip
    for key, value in runs[0].shared.items():
        torch.testing.assert_close(value, runs[1].shared[key], rtol=1e-8, atol=1e-10)
    for key, value in runs[0].personal.items():
        torch.testing.assert_close(value, runs[1].personal[key], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("head", ["lora:2:3", "frozen"])
def test_a_folder_predicts_without_the_file(head: str, federation: Federation, path: str, tmp_path) -> None:
    net = architecture("mlp:6,5", federation, head=head, weights=path)
    run = fit(
        models.PFedVEM(net, head_epochs=2), federation, rounds=1, progress=False, draws=2, folder=tmp_path / "run"
    )
    (tmp_path / "network.safetensors").unlink()
    x = federation.x[federation.test[1][:2]]
    for draws in (0, 2):
        plain = run.client_module(1, draws)(x).exp().detach()
        torch.testing.assert_close(plain, torch.as_tensor(run.predict(x, client=1, draws=draws)))
    again = load_run(tmp_path / "run")
    torch.testing.assert_close(torch.as_tensor(again.predict(x, client=1)), torch.as_tensor(run.predict(x, client=1)))
    other = architecture("mlp:6,5", federation)
    with pytest.raises(UserError, match="another network|not trained"):
        load_run(tmp_path / "run", network=other)


@pytest.mark.parametrize(
    ("spec", "head", "file", "words"),
    [
        ("mlp:6,5", "lora:2", None, "is for a pretrained network: name the file of its weights, weights=FILE"),
        ("mlp:6,5", "lora", "network.safetensors", "unknown head 'lora'"),
        ("mlp:6,5", "lora:9", "network.safetensors", "adapters of rank 9 do not fit"),
        ("mlp:6,5", "lora:0", "network.safetensors", "rank is at least 1"),
        ("mlp:6,5", "lora:2:layer4", "network.safetensors", "unknown layer to adapt 'layer4'"),
        ("mlp:6,4", "lora:2", "network.safetensors", r"another network than mlp:6,4: its '3\.bias' has shape"),
        ("linear", "linear", "network.safetensors", "another network than linear: it has '1"),
        ("mlp:6,5,5", "linear", "network.safetensors", r"it lacks '5\.bias'"),
        ("mlp:6,5", "linear", "nothing.pt", "no file of weights"),
        ("mlp:6,5", "linear", "objects.pt", "is no file of weights"),
        ("mlp:6,5,group-norm", "linear", None, "no batch norm that group-norm could replace"),
    ],
)
def test_what_does_not_fit_is_one_line(spec, head, file, words, federation, path, tmp_path) -> None:
    torch.save({"fn": Federation}, tmp_path / "objects.pt")
    with pytest.raises(UserError, match=words) as refused:
        architecture(spec, federation, head=head, weights=None if file is None else tmp_path / file)
    assert "\n" not in str(refused.value)


def test_methods_that_read_the_head_as_a_matrix_take_none(federation: Federation, path: str) -> None:
    net = architecture("mlp:6,5", federation, head="lora:2", weights=path)
    for name in ("PFedEB", "PFedHB", "FedProto", "FedPAC", "MOON", "Ditto"):
        with pytest.raises(UserError, match="takes no adapters: head=linear"):
            getattr(models, name)(net)
    latent = architecture("mlp:6,5", federation, latent=True, head="lora:2:3", weights=path)
    assert isinstance(latent.head, LowRankHead)
    again = written.read(*written.written(latent))
    assert again.encoder is not None
    constants = again.encoder.whole.constants
    assert constants.keys() == latent.encoder.whole.constants.keys() != set()
    assert all(torch.equal(value, latent.encoder.whole.constants[key]) for key, value in constants.items())
    with pytest.raises(UserError, match="latent features come before the first adapted layer"):
        architecture("mlp:6,5", federation, latent=True, head="lora:2", weights=path)
    assert isinstance(architecture("mlp:6,5", federation, head="frozen", weights=path), Architecture)
