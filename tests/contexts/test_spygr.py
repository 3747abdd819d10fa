"""SpyGR's factored graph compared with its n x n matrices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close, relative_error
from torch.utils._python_dispatch import TorchDispatchMode

from hamburger.contexts.spygr import GraphReasoning, SpyGR, apply_laplacian, pool_by_two
from hamburger.errors import OptionError


def graph(n=20, m=4):
    phi = torch.randn(2, m, n, dtype=torch.float64).relu()
    return phi, torch.rand(2, m, dtype=torch.float64)


def dense(phi, lam):
    """L and the degrees, n x n, of one sample."""
    a = torch.zeros(phi.shape[1], phi.shape[1], dtype=phi.dtype)
    for axis, weight in zip(phi, lam, strict=True):
        a += weight * torch.outer(axis, axis)
    degree = a.sum(1)
    root = torch.where(degree > 0, degree, 1.0).rsqrt()
    return torch.eye(len(a), dtype=a.dtype) - root[:, None] * a * root, degree


def test_factored_laplacian_matches_the_dense_one():
    phi, lam = graph()
    x = torch.randn(2, 6, 20, dtype=torch.float64)
    for i in range(2):
        assert_close(apply_laplacian(x, phi, lam)[i], x[i] @ dense(phi[i], lam[i])[0])


def test_root_of_the_degrees_is_in_the_null_space():
    phi, lam = graph()
    degree = torch.stack([dense(p, v)[1] for p, v in zip(phi, lam, strict=True)])
    assert (degree >= 0).all()
    root = degree.sqrt()[:, None]
    assert apply_laplacian(root, phi, lam).norm() < 1e-12 * root.norm()
    assert apply_laplacian(root + torch.randn_like(root), phi, lam).norm() > 0.1


def test_isolated_pixel_is_unchanged():
    phi, lam = graph()
    phi[:, :, 7] = 0
    phi.requires_grad_()
    x = torch.randn(2, 6, 20, dtype=torch.float64)
    y = apply_laplacian(x, phi, lam)
    assert torch.equal(y[..., 7], x[..., 7])
    y.sum().backward()
    assert phi.grad.isfinite().all()


def randomise(layer):
    for module in layer.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data = torch.rand_like(tensor) + 0.2
    return layer.eval().double()


def reason(level, x):
    """Graph reasoning by dense matrices, sample by sample."""
    out = []
    for sample in x:
        flat = sample.flatten(1)
        phi = F.relu(level.phi[0].weight[:, :, 0, 0] @ flat)
        lam = 1 / (1 + torch.exp(-level.weigh.weight @ flat.mean(1)))
        y = level.theta[0].weight[:, :, 0, 0] @ (flat @ dense(phi, lam)[0])
        norm = level.theta[1]
        y = F.batch_norm(y.T, norm.running_mean, norm.running_var, norm.weight, norm.bias).T
        out.append(F.relu(y).view_as(sample))
    return torch.stack(out)


def test_one_level_matches_its_formula():
    level = randomise(GraphReasoning(6, 4))
    x = torch.randn(2, 6, 5, 3, dtype=torch.float64)
    assert_close(level(x), reason(level, x))


@pytest.mark.parametrize("size", [(8, 12), (9, 7), (1, 3)])
def test_the_pyramid_is_fused_from_the_top_down(size):
    layer = randomise(SpyGR(6, embedding=4))
    x = torch.randn(2, 6, *size, dtype=torch.float64)
    maps = [x, F.max_pool2d(x, 2, ceil_mode=True)]
    maps.append(F.max_pool2d(maps[1], 2, ceil_mode=True))
    fine, middle, coarse = (reason(level, y) for level, y in zip(layer.levels, maps, strict=True))
    middle = middle + F.interpolate(coarse, middle.shape[2:], mode="bilinear", align_corners=True)
    fine = fine + F.interpolate(middle, fine.shape[2:], mode="bilinear", align_corners=True)
    assert_close(layer(x), x + fine)


def test_pooling_by_two_rounds_up_and_ignores_padding():
    x = -torch.arange(1.0, 16.0).view(1, 1, 3, 5)  # negative: a padding of zeros would win
    assert torch.equal(pool_by_two(x)[0, 0], torch.tensor([[-1.0, -3.0, -5.0], [-11.0, -13.0, -15.0]]))
    assert torch.equal(pool_by_two(x[..., :2, :4]), F.max_pool2d(x[..., :2, :4], 2))


class Largest(TorchDispatchMode):
    """The most entries that any tensor made inside has."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return out


def test_adjacency_matrix_is_never_formed():
    layer, x = SpyGR(4, embedding=4, scales=2), torch.randn(1, 4, 24, 24, requires_grad=True)
    with Largest() as largest:
        layer(x).sum().backward()
    assert largest.entries <= 4 * 25 * 25  # the map and its padding; n x n would be 576 x 576


def test_parameters_and_scales():
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    per_level = 2 * 512 * 64 + 512 * 512 + 2 * 512
    assert count(SpyGR(512)) == 3 * per_level == 986_112
    assert count(SpyGR(512, scales=1)) == per_level
    x = torch.randn(1, 8, 8, 8)
    layer = SpyGR(8, scales=2).eval()
    single = SpyGR(8, scales=1).eval()
    single.levels[0].load_state_dict(layer.levels[0].state_dict())
    assert relative_error(single(x), layer(x)) > 1e-3


def test_many_pixels_in_half_precision():
    layer, x = SpyGR(8, embedding=8).eval(), torch.randn(1, 8, 128, 128) * 30
    with torch.autocast("cpu", dtype=torch.float16):
        half = layer(x)
    assert relative_error(half, layer(x)) < 5e-3


@pytest.mark.parametrize("option", ["embedding", "scales"])
def test_messages(option):
    with pytest.raises(OptionError, match=f"SpyGR: {option} must be a whole number of at least 1, got 0"):
        SpyGR(8, **{option: 0})
