"""A client's model as a plain module: it says what the run says, without the run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.federations import blobs, costs
from support.methods import network_for

from hierfl import Federation, UserError
from hierfl.inference.run.fit import fit
from hierfl.models import DGLMC, FOLA, Ditto, FedAvg, FedROD, PFedEB, PFedV, PFedVEM
from hierfl.nn.networks.build import architecture

HOW: dict[str, Any] = {"rounds": 1, "draws": 3, "progress": False}


@pytest.mark.parametrize("cls", [PFedVEM, PFedEB, DGLMC, FOLA, Ditto, FedAvg])
def test_a_module_says_what_its_client_s_model_says(cls: Any) -> None:
    fed = blobs([9, 7, 4], test=2)
    run = fit(cls(network_for(cls, fed)), fed, dtype=torch.float64, **HOW)
    x, client = fed.x[:6], run.ids[1]
    for draws in (0, 4) if run.random else (0,):
        module = run.client_module(client, draws)
        torch.testing.assert_close(module(x).exp(), run.predict(x, client, draws=draws))
    other = copy.deepcopy(module)
    for p in other.parameters():
        torch.nn.init.zeros_(p)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))


def test_a_regression_s_module_is_in_the_user_s_units() -> None:
    fed = costs([9, 7, 5])
    run = fit(PFedVEM(architecture("mlp:3", fed)), fed, **HOW)
    for draws in (0, 4):
        outputs = run.client_module("h0", draws)(fed.x[:4])
        torch.testing.assert_close(outputs.double(), run.predict(fed.x[:4], "h0", draws=draws), rtol=1e-5, atol=1e-2)


def test_a_module_of_pictures_takes_bytes_and_is_exported() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 1, 12, 12), generator=rng).to(torch.uint8)
    fed = Federation.from_arrays(x, torch.arange(20) % 2, torch.arange(20) // 10, test=0.0)
    run = fit(PFedVEM(architecture("mlp:3", fed)), fed,
              splits=("train",), **HOW)  # fmt: skip
    module = run.client_module("1")
    torch.testing.assert_close(module(x).exp(), run.predict(x, "1"))
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.testing.assert_close(exported.module()(x[:7]), module(x[:7]))
    torch.testing.assert_close(module(x.float()), module(x))
    with pytest.raises(UserError, match="reach to 1, and this module takes pixels from 0 to 255"):
        module(x / 255)


def test_a_module_refuses_inputs_of_another_shape() -> None:
    """A column alone would be spread over all of them, and answered."""
    fed = blobs([9, 7])
    module = fit(FedAvg(network_for(FedAvg, fed)), fed, **HOW).client_module(fed.ids[0])
    for wrong, words in (
        (fed.x[:4, :1], r"shape \(4, 1\), expected \(n, \d\)$"), (fed.x[0], r"one input x is x\[None\]"),
        (fed.x[:4].numpy(), "a ndarray, and this module takes a tensor"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            module(wrong)


def test_a_module_is_at_the_run_s_temperature_and_names_its_columns() -> None:
    fed = blobs([30, 30], validation=0.3)
    run = fit(PFedVEM(network_for(PFedVEM, fed)), fed, calibrate="temperature", **HOW)
    for draws in (0, 3):
        module = run.client_module(run.ids[1], draws, tempered=True)
        wanted = run.predict(fed.x[:5], run.ids[1], draws=draws, tempered=True)
        torch.testing.assert_close(module(fed.x[:5]).exp(), wanted)
        assert (module(fed.x[:5]) - run.client_module(run.ids[1], draws)(fed.x[:5])).abs().max() > 1e-3
    assert module.labels == [str(k) for k in range(fed.classes)]
    plain = fit(PFedVEM(network_for(PFedVEM, fed)), fed, **HOW)
    with pytest.raises(UserError, match="the fit has no temperature"):
        plain.client_module(plain.ids[0], tempered=True)


def test_what_is_not_one_network_and_one_head_is_refused() -> None:
    fed = blobs([9, 7, 4])
    for cls, words in ((FedROD, "more than one network and one head"), (PFedV, "latent features")):
        run = fit(cls(network_for(cls, fed)), fed, **HOW)
        with pytest.raises(UserError, match=words):
            run.client_module(run.ids[0])
    with pytest.raises(UserError, match="no client 'nine'"):
        run.client_module("nine")


def test_onnx_takes_a_module(tmp_path: Any) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    fed = blobs([9, 7])
    module = fit(FedAvg(network_for(FedAvg, fed)), fed, **HOW).client_module("place-00")
    torch.onnx.export(module, (fed.x[:2].float(),), tmp_path / "m.onnx", dynamo=True, verbose=False)
    assert (tmp_path / "m.onnx").stat().st_size
