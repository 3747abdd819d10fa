"""Random checkpoints under the published names, and their burgers computed in plain torch from those names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import hamburger as hb

C, D, RANK, STEPS = 64, 32, 4, 3
State = dict[str, Tensor]


class Maker:
    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def conv(self, out: int, into: int, kernel: int = 1) -> Tensor:
        return self(out, into, kernel, kernel) / into**0.5

    def norm(self, name: str, width: int, batch: bool = True) -> State:
        state = {f"{name}.weight": 1 + 0.3 * self(width), f"{name}.bias": self(width)}
        if batch:
            stats = {"running_mean": self(width), "running_var": 0.5 + self(width).abs()}
            state |= {f"{name}.{key}": value for key, value in stats.items()}
            state[f"{name}.num_batches_tracked"] = torch.tensor(11)
        return state


def hamnet(version: str, *, nmf: bool = True, width: int = D, slim: int | None = None) -> State:
    """HamNet's `net`: backbone, squeeze, burger, align and classifier."""
    new = Maker()
    lower = "hamburger.lower_bread.0" if nmf else "hamburger.lower_bread"
    state = {"backbone.0.0.weight": new.conv(8, 3, 3), "squeeze.conv.weight": new.conv(C, 16, 3)}
    state |= new.norm("squeeze.bn", C)
    if version == "v2+":
        state |= {"hamburger.coef_shortcut": torch.tensor([1.3]), "hamburger.coef_ham": torch.tensor([0.7])}
    state |= {f"{lower}.weight": new.conv(width, C), f"{lower}.bias": new(width)}
    if version == "v1":
        state |= {"hamburger.upper_bread.0.weight": new.conv(C, width), **new.norm("hamburger.upper_bread.1", C)}
    else:
        slim = slim or width
        state |= {"hamburger.cheese.conv.weight": new.conv(slim, width), **new.norm("hamburger.cheese.bn", slim)}
        state |= {"hamburger.upper_bread.weight": new.conv(C, slim)}
    return state | {"align.conv.weight": new.conv(8, C, 3), "fc.1.weight": new.conv(21, 8), "fc.1.bias": new(21)}


def lightham(norm: str = "gn", head: str = "decode_head.", burger: str = "hamburger.") -> State:
    """The head of SegNeXt and of mmsegmentation, in a whole model."""
    new = Maker()
    state = {"backbone.patch_embed1.proj.0.weight": new.conv(8, 3, 3)}
    state |= {f"{head}conv_seg.weight": new.conv(19, C), f"{head}conv_seg.bias": new(19)}
    state |= {f"{head}squeeze.conv.weight": new.conv(C, 16), **new.norm(f"{head}squeeze.{norm}", C, norm == "bn")}
    place = head + burger
    state |= {f"{place}ham_in.conv.weight": new.conv(C, C), f"{place}ham_in.conv.bias": new(C)}
    state |= {f"{place}ham_out.conv.weight": new.conv(C, C), **new.norm(f"{place}ham_out.{norm}", C, norm == "bn")}
    return state | {f"{head}align.conv.weight": new.conv(C, C), **new.norm(f"{head}align.{norm}", C, norm == "bn")}


def paddleseg() -> tuple[State, State]:
    """PaddleSeg's port of the head, and the same tensors under LightHam's names."""
    model, words = lightham(), {"ham_in.conv": "ham_in", ".conv.": "._conv.", ".gn.": "._group_norm."}
    renamed = {}
    for key, value in model.items():
        for theirs, ours in words.items():
            key = key.replace(theirs, ours)
        renamed[key] = value
    return renamed, model


def build(version: str = "v1", **options: object) -> hb.Hamburger:
    options = {"channels": C, "inner": D, "rank": RANK, "steps": STEPS, **options}
    return hb.Hamburger(version=version, **options).double().eval()  # type: ignore[arg-type]


def burger_of(state: State, prefix: str) -> State:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def bn(x: Tensor, state: State, name: str) -> Tensor:
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    return F.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"], training=False)


def nmf(image: Tensor, bases: Tensor) -> Tensor:
    """Multiplicative updates, one image at a time, one row of `codes` per position."""
    out = []
    for x in image.flatten(2):
        dictionary, codes = bases, torch.softmax(x.T @ bases, dim=1)
        for _ in range(STEPS):
            codes = codes * (x.T @ dictionary) / (codes @ (dictionary.T @ dictionary) + 1e-6)
            dictionary = dictionary * (x @ codes) / (dictionary @ (codes.T @ codes) + 1e-6)
        codes = codes * (x.T @ dictionary) / (codes @ (dictionary.T @ dictionary) + 1e-6)
        out.append(dictionary @ codes.T)
    return torch.stack(out).reshape(image.shape)


def run_hamnet(version: str, net: State, x: Tensor, bases: Tensor) -> Tensor:
    state = burger_of(net, "hamburger.")
    y = F.relu(F.conv2d(x, state["lower_bread.0.weight"], state["lower_bread.0.bias"]))
    y = nmf(y, bases)
    if version == "v1":
        return F.relu(x + bn(F.conv2d(y, state["upper_bread.0.weight"]), state, "upper_bread.1"))
    y = F.relu(bn(F.conv2d(y, state["cheese.conv.weight"]), state, "cheese.bn"))
    y = F.conv2d(y, state["upper_bread.weight"])
    if version == "v2":
        return F.relu(x + y)
    return F.relu(state["coef_shortcut"] * x + state["coef_ham"] * y)


def run_lightham(model: State, x: Tensor, bases: Tensor) -> Tensor:
    state = burger_of(model, "decode_head.hamburger.")
    y = nmf(F.relu(F.conv2d(x, state["ham_in.conv.weight"], state["ham_in.conv.bias"])), bases)
    y = F.conv2d(y, state["ham_out.conv.weight"])
    if "ham_out.bn.weight" in state:
        return F.relu(x + bn(y, state, "ham_out.bn"))
    return F.relu(x + F.group_norm(y, 32, state["ham_out.gn.weight"], state["ham_out.gn.bias"]))
