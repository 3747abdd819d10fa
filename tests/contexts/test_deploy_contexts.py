"""Every context compiled without graph breaks, and as an ONNX graph of any batch and size."""

from __future__ import annotations

import copy

import pytest
import torch
from tiers import full_except, not_on_torch_2_6
from tolerances import assert_close, relative_error
from torch import nn
from torch.export import Dim

import hamburger as hb

CHANNELS = 32
SHORT = {"steps": 2}  # more would be the same graph, longer
OPTIONS = {
    "nmf": SHORT,
    **dict.fromkeys(("hals", "learned", "lightham", "robust"), SHORT),
    "local": SHORT,
    "windowed": {"window": 6, **SHORT},
    # a warmer softmax: at 0.01 it would show rounding, a hundred times over, and not the graph
    "vq": {"temperature": 0.1, **SHORT},
    "cd": {"temperature": 0.1, **SHORT},
    "dm": {"sizes": (1, 2, 3)},  # its graph has a product for each tap
}


def build(name):
    torch.manual_seed(0)
    layer = hb.create_context(name, channels=CHANNELS, **OPTIONS.get(name, {}))
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return layer.eval()


@pytest.mark.parametrize("name", full_except(("nmf",), hb.list_contexts()))
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    layer = build(name)
    fast = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    a, b = (torch.linspace(-1, 1, 2 * CHANNELS * 63).view(2, CHANNELS, 7, 9).requires_grad_() for _ in range(2))
    ours, theirs = fast(a), layer(b)
    assert_close(ours, theirs, slack=10)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    assert_close(a.grad, b.grad, slack=10)


@pytest.mark.parametrize("name", full_except(("nmf",), hb.list_contexts()))
@not_on_torch_2_6
def test_onnx_of_any_batch_and_size(name, tmp_path):
    import onnxruntime

    layer, path = build(name), tmp_path / "context.onnx"
    shapes = ({0: Dim("b", min=1, max=64), 2: Dim("h", min=5, max=512), 3: Dim("w", min=5, max=512)},)
    torch.onnx.export(
        layer,
        (torch.randn(2, CHANNELS, 8, 9),),
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        verbose=False,
        optimize=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in ((1, CHANNELS, 9, 6), (3, CHANNELS, 12, 20)):
        z = torch.randn(size)
        actual = session.run(None, {session.get_inputs()[0].name: z.numpy()})[0]
        assert relative_error(torch.from_numpy(actual), layer(z)) < 1e-5
