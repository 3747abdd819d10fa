"""Load the Hamburger weights of other implementations: all of them, or none and the reasons."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger.checkpoints.foreign_names import TABLES, Burger, find_burger
from hamburger.checkpoints.read import CheckpointError, Report, unwrap
from hamburger.errors import OptionError
from hamburger.layers import Hamburger, HamLayer

# the options that each axis of our tensors follows from: what to look at when a shape does not fit
AXES = {
    "lower.weight": ("inner or dual", "channels"),
    "lower.bias": ("inner or dual",),
    "cheese.0.weight": ("inner or cheese_factor", "inner or dual"),
    "cheese.1": ("inner or cheese_factor",),
    "upper.weight": ("channels", "inner or cheese_factor"),
    "norm": ("channels",),
    "ham.dictionary.bases": ("heads", "inner or heads", "rank"),
}
COUNTER = "num_batches_tracked"


def load_hamburger(
    layer: Hamburger,
    state: Mapping[str, Any],
    source: str = "auto",
    *,
    strict: bool = True,
    prefix: str | None = None,
) -> Report:
    """Fill `layer` from the burger in a checkpoint of HamNet, LightHam (SegNeXt) or mmsegmentation.

    `state` is what `read_checkpoint` returns. `source` is "auto", "hamnet", "lightham" or "mmseg"; the last two have
    the same keys, and "auto" calls both "lightham". Where there are several burgers, `prefix` names the one to take, as
    in "decode_head.hamburger".

    With `strict` anything missing, unexpected, misshapen or built differently raises CheckpointError with the whole
    report, and the layer is as before. Otherwise what fits is loaded and the report is a warning. Keys outside the
    burger never count, and neither do the bases that evaluation starts from: the published weights draw theirs anew at
    every call and store none, so the layer keeps its own.

    The tensors hold neither rank, steps nor gradient; `infer_options` says what the published weights were made with.
    LightHam's (SegNeXt, mmsegmentation) take version="v1", norm="group", eval_steps=7 and, to train on, grad="bptt".
    """
    if not isinstance(layer, Hamburger):
        raise OptionError(f"load_hamburger: the layer must be a hamburger.Hamburger, got a {type(layer).__name__}")
    burger = find_burger(unwrap(state), source, prefix)
    report = Report(burger.source if source == "auto" else source, burger.prefix)
    report.skipped.update({key: _outside(key, burger.prefix) for key in burger.outside})
    report.conflicts.update(_conflicts(layer, burger))
    values = _match(layer, burger, report)
    if strict and not report.ok:
        report = replace(report, loaded={}, held_back=report.loaded)
        raise CheckpointError("load_hamburger: the checkpoint does not fit the layer, nothing was loaded", report)
    # every shape was checked above, so this cannot stop half-way
    layer.load_state_dict(values, strict=False)
    if not report.ok:
        warnings.warn(f"load_hamburger: loaded in part\n{report}", stacklevel=2)
    return report


def _match(layer: Hamburger, burger: Burger, report: Report) -> dict[str, Tensor]:
    """Sort every key of the burger and of the layer into the report; return what can be loaded, under our names."""
    wanted = layer.state_dict()
    values: dict[str, Tensor] = {}
    for name, tensor in burger.tensors.items():
        theirs, ours = burger.prefix + name, TABLES[burger.source].get(name)
        if name == "ham_2.bases" and layer.channel_ham is not None:
            report.skipped[theirs] = "bases for one image size; along channels the layer makes its own for any size"
        elif ours is None:
            report.unexpected[theirs] = f"no such name in a {burger.source} burger"
        elif ours not in wanted and name.endswith(COUNTER):
            report.skipped[theirs] = "a counter that the layer's norm does not keep"
        elif ours not in wanted:
            report.unexpected[theirs] = f"the layer has no '{ours}'"
        elif ours in report.loaded or ours in report.mismatched:
            report.unexpected[theirs] = f"a second source for '{ours}'"
        elif misfit := _misfit(ours, tensor, wanted[ours]):
            report.mismatched[ours] = f"from '{theirs}': {misfit}"
        else:
            report.loaded[ours] = theirs
            values[ours] = tensor.reshape(wanted[ours].shape)
    for ours in wanted:
        if ours not in report.loaded and ours not in report.mismatched:
            why = _kept(layer, ours)
            target = report.missing if why is None else report.kept
            target[ours] = why or _missing(ours, burger)
    return values


def _misfit(ours: str, theirs: Tensor, wanted: Tensor) -> str | None:
    """Why this tensor cannot go there, if it cannot. A 1x1 kernel and a vector of one only have axes too many."""
    shape, want = tuple(theirs.shape), tuple(wanted.shape)
    if theirs.is_floating_point() != wanted.is_floating_point():
        return f"it holds {theirs.dtype}, the layer's is {wanted.dtype}; likely a quantised checkpoint"
    trimmed = shape
    while len(trimmed) > len(want) and trimmed[-1] == 1:
        trimmed = trimmed[:-1]
    if trimmed == want:
        return None
    both = f"its shape is {shape}, the layer's is {want}"
    if len(trimmed) != len(want):
        cause = "a kernel larger than 1x1" if len(trimmed) > len(want) > 1 else "another kind of tensor"
        return f"{both}; likely {cause}"
    options = AXES.get(ours) or AXES.get(ours.rpartition(".")[0]) or ()
    differ = [f"{name} ({t} there, {w} here)" for name, t, w in zip(options, trimmed, want, strict=False) if t != w]
    return f"{both}; likely another {', '.join(differ) or 'layer'}"


def _conflicts(layer: Hamburger, burger: Burger) -> dict[str, str]:
    """Differences that could pass by the keys: a GN's weights would fit a BN, and a ReLU has none at all."""
    found = {}
    if burger.version != layer.version:
        found["version"] = f"the checkpoint's burger is '{burger.version}', the layer '{layer.version}'"
    norm = _norm_of(layer)
    if norm is not None and burger.norm != norm:
        found["norm"] = f"the checkpoint's is '{burger.norm}', the layer's '{norm}'"
    if burger.rectify not in (None, layer.rectify):
        theirs, ours = ("a" if there else "no" for there in (burger.rectify, layer.rectify))
        found["ham"] = (
            f"the checkpoint has {theirs} ReLU before its ham, the layer {ours}: NMF has one, CD and VQ have none"
        )
    return found


def _norm_of(layer: Hamburger) -> str | None:
    """The name of the layer's norm, None for one of the caller's own."""
    norm = layer.cheese[1] if isinstance(layer.cheese, nn.Sequential) else layer.norm
    kinds = {"batch": _BatchNorm, "group": nn.GroupNorm, "none": nn.Identity}
    return next((name for name, kind in kinds.items() if isinstance(norm, kind)), None)


def _kept(layer: Hamburger, ours: str) -> str | None:
    """Why the layer may keep its own value of a key that no source has; None where it may not."""
    if ours == "ham.dictionary.bases" and isinstance(layer.ham, HamLayer):
        if layer.ham.dictionary.init in ("random", "fixed"):
            return "stored only by sources with bases that are not random; evaluation starts from the layer's own"
    elif ours == "channel_ham.dictionary.multipliers":
        return "ours alone; evaluation starts from the layer's own bases along channels"
    elif ours.endswith(COUNTER):
        return "a counter, without effect on the values"
    return None


def _missing(ours: str, burger: Burger) -> str:
    if ours == "ham.dictionary.bases":
        return "no bases in the checkpoint, and a learned or online dictionary cannot do without; try init='random'"
    known = [burger.prefix + theirs for theirs, name in TABLES[burger.source].items() if name == ours]
    return f"not there as {' or '.join(known)}" if known else f"a {burger.source} burger has nothing like it"


def _outside(key: str, prefix: str) -> str:
    """The part a key belongs to: the first level of its name that is not also one of the burger's."""
    levels = zip(key.split("."), prefix.split("."), strict=False)
    part = next((theirs for theirs, level in levels if theirs != level), key)
    return f"outside the burger, in {part}"


# ----------------------------------------------------------------------------------------------------------------------
# The constructor options that show in the tensors.


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
