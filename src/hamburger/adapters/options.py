"""The constructor options that show in the tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hamburger.adapters.names import Burger, find_burger
from hamburger.adapters.read import unwrap
from hamburger.adapters.report import CheckpointError
from hamburger.errors import OptionError


def infer_options(
    state: Mapping[str, Any], source: str = "auto", *, prefix: str | None = None, dual: bool | None = None
) -> dict[str, Any]:
    """Options for `hb.Hamburger` that rebuild the checkpoint's burger as far as its tensors tell.

    Always channels, inner, version, norm and dual; cheese_factor where there is cheese; ham where it must be NMF;
    heads, rank and init where bases are stored. Not in any tensor, so yours to give:

    - HamNet: one-step gradients (our default), steps=6; rank 64 in the published V2, 512 in V2+; norm_momentum=3e-4.
    - LightHam, in SegNeXt and in mmsegmentation: trained with full back-propagation, grad="bptt", and by default
      steps=6, eval_steps=7, rank=64. SegNeXt's T and S have rank 16, B and L 64; mmsegmentation's configurations of B
      and L inherit 16, so look into the one that came with the file.
    - VQ and CD cannot be told apart: give ham="vq" or ham="cd".
    - heads, unless bases are stored; the groups of a group norm (32 in all published configurations).

    `dual` settles the one ambiguity: cheese of V2+ that halves the width is that of a dual burger, or cheese_factor=2.
    """
    burger = find_burger(unwrap(state), source, prefix)
    inner, channels = _sizes(burger, "lower.weight", 2)
    options: dict[str, Any] = {"channels": channels, "version": burger.version, "norm": burger.norm}
    factor = 1
    if burger.version in ("v2", "v2+"):
        slim = _sizes(burger, "cheese.0.weight", 1)[0]
        if slim == 0 or inner % slim:
            raise CheckpointError(
                f"infer_options: the cheese's width {slim} does not divide the lower bread's, {inner}"
            )
        factor = inner // slim
    if dual is None:
        dual = _dual(burger, factor)
    elif dual and (burger.version != "v2+" or factor % 2):
        raise OptionError(f"infer_options: a '{burger.version}' burger of width {inner} / {factor} cannot be dual")
    if burger.version in ("v2", "v2+"):
        options["cheese_factor"] = factor // 2 if dual else factor
    options |= {"inner": inner // 2 if dual else inner, "dual": dual}
    if burger.rectify:
        options["ham"] = "nmf"
    else:
        warnings.warn("infer_options: this lower bread is that of VQ or CD: add ham='vq' or ham='cd'", stacklevel=2)
    if "ham.bases" in burger.tensors or "ham_1.bases" in burger.tensors:
        heads, _, rank = _sizes(burger, "ham.dictionary.bases", 3)
        options |= {"heads": heads, "rank": rank, "init": "fixed"}
    return options


def _sizes(burger: Burger, ours: str, count: int) -> tuple[int, ...]:
    shape = tuple(burger.find(ours).shape)
    if len(shape) < count:
        raise CheckpointError(f"infer_options: what stands for '{ours}' must have {count} axes or more, got {shape}")
    return shape[:count]


def _dual(burger: Burger, factor: int) -> bool:
    """A dual burger doubles what the cheese eats, so its factor is even; so may be that of a single one."""
    if burger.version != "v2+" or factor % 2:
        return False
    if "ham_1.bases" in burger.tensors or "ham_2.bases" in burger.tensors:
        return True
    if "ham.bases" in burger.tensors:
        return False
    warnings.warn(
        f"infer_options: the widths of this V2+ burger are those of dual=True, cheese_factor={factor // 2} and of "
        f"dual=False, cheese_factor={factor}; taking the first, the authors' default: pass dual= to say which",
        stacklevel=3,
    )
    return True
