"""The hosts of the one-launch kernels on a CPU: their own code, with something else where they start a kernel."""

from __future__ import annotations

import contextlib
import math
import random
from unittest import mock

import torch
from torch.nn.functional import normalize

from hamburger.kernels import cosine_hopper, launcher, nmf_hopper
from hamburger.kernels.tiling import GpuProperties, fit_resident

H200 = GpuProperties((9, 0), processors=132, shared=232_448)
SMALL = GpuProperties((9, 0), processors=4, shared=232_448)  # whose programs have to take more columns
HOSTS = {"nmf": nmf_hopper, "vq": cosine_hopper, "cd": cosine_hopper}
NEEDS = {
    "nmf": nmf_hopper.resident_bytes,
    "vq": cosine_hopper.resident_bytes,
    "cd": cosine_hopper.cd_resident_bytes,
}
EPS, TEMPERATURE, BETA = 1e-6, 0.01, 0.1


@contextlib.contextmanager
def poisoned_memory():
    """What the host does not fill is NaN."""
    torch.set_deterministic_debug_mode("error")
    assert torch.empty(8).isnan().all()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def solve(
    ham, b, d, n, r, steps, start,
    *, card=H200, channels_last=False, dtype=torch.float32, keep=True, scaled=False, spoil=lambda x: None, eps=EPS,
):  # fmt: skip
    """->   x, bases, and what came of them: D, C, D C, and what the gradient needs

    scaled: VQ and CD write shares of int16, however few. spoil: what to do to x first.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, d, generator=draw).mT if channels_last else torch.randn(b, d, n, generator=draw)
    bases = torch.randn(b, d, r, generator=draw)
    if ham == "nmf":
        x, bases = x.abs(), bases.abs()
    x, bases = x.bfloat16(), normalize(bases, dim=1)
    spoil(x)
    before, host, wave = (x.clone(), bases.clone()), HOSTS[ham], fit_resident(b, d, n, r, card, NEEDS[ham])
    more = {"product": True, "dtype": dtype}
    many = 0 if scaled else cosine_hopper.MANY_PARTIAL_SUMS

    def zeros(b, device):  # by a kernel of another kind
        return torch.zeros(b, launcher.COUNTERS_PER_IMAGE, dtype=torch.int32)

    patches = (
        mock.patch.object(host, "launch", start),
        mock.patch.object(cosine_hopper, "MANY_PARTIAL_SUMS", many),
        mock.patch.object(launcher, "zero_counters", zeros),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        if ham == "nmf":
            found = nmf_hopper.solve_resident(x, bases, wave, steps, eps, keep=keep, **more)
        elif ham == "vq":
            found = (*cosine_hopper.solve_vq_resident(x, bases, wave, steps, TEMPERATURE, **more), None)
        else:
            found = cosine_hopper.solve_cd_resident(x, bases, wave, steps, TEMPERATURE, BETA, keep=keep, **more)
    assert all(
        torch.equal(*pair) for pair in zip((x.nan_to_num(), bases), (before[0].nan_to_num(), before[1]), strict=True)
    )
    return x, bases, found


def error(found, wanted):
    """Relative, and infinite where something is NaN."""
    error = float((found.double() - wanted).norm() / wanted.norm())
    return error if math.isfinite(error) else math.inf


def at_random(seed):
    """Some of the programs have a turn, in any order."""
    draw = random.Random(seed)
    return lambda left: draw.sample(left, draw.randint(1, len(left)))
