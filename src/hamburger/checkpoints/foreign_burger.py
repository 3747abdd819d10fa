"""Load Hamburger weights of other implementations: everything fits, or nothing is loaded and a report says why."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger.checkpoints.read import COUNTER, Report, unwrap
from hamburger.errors import CheckpointError, OptionError, check_choice, shorten
from hamburger.layers import Hamburger

AFFINE = ("weight", "bias")
BATCH_NORM = (*AFFINE, "running_mean", "running_var", "num_batches_tracked")


def _map_parts(theirs: str, ours: str, parts: Iterable[str]) -> dict[str, str]:
    return {f"{theirs}.{part}": f"{ours}.{part}" for part in parts}


HAMNET = {
    **_map_parts("lower_bread.0", "lower", AFFINE),  # NMF: a Sequential of linear and ReLU
    **_map_parts("lower_bread", "lower", AFFINE),  # CD and VQ: the linear alone
    "cheese.conv.weight": "cheese.0.weight",
    **_map_parts("cheese.bn", "cheese.1", BATCH_NORM),
    "upper_bread.0.weight": "upper.weight",  # V1: a Sequential of linear and BN
    **_map_parts("upper_bread.1", "norm", BATCH_NORM),
    "upper_bread.weight": "upper.weight",  # V2 and V2+: the linear alone
    "coef_ham": "burger_scale",
    "coef_shortcut": "skip_scale",
    "ham.bases": "ham.dictionary.bases",  # stored only if the bases are not random
    "ham_1.bases": "ham.dictionary.bases",  # the half of a dual burger along positions
}
LIGHTHAM = {
    **_map_parts("ham_in.conv", "lower", AFFINE),
    **_map_parts("ham_in", "lower", AFFINE),  # PaddleSeg: the convolution alone
    "ham_out.conv.weight": "upper.weight",
    "ham_out._conv.weight": "upper.weight",  # PaddleSeg
    **_map_parts("ham_out.gn", "norm", AFFINE),
    **_map_parts("ham_out._group_norm", "norm", AFFINE),  # PaddleSeg
    **_map_parts("ham_out.bn", "norm", BATCH_NORM),
    "ham.bases": "ham.dictionary.bases",  # OTX (Geti) stores the bases of evaluation
}
PORTS = ("mmseg", "otx", "paddleseg")  # of LightHam
NAME_TABLES = {"hamnet": HAMNET, **dict.fromkeys(("lightham", *PORTS), LIGHTHAM)}
BREADS = {"hamnet": "lower_bread|upper_bread", **dict.fromkeys(("lightham", *PORTS), "ham_in|ham_out")}
BASES = "ham.dictionary.bases"


def load_hamburger(
    layer: Hamburger,
    state: Mapping[str, Any],
    source: str = "auto",
    *,
    strict: bool = True,
    prefix: str | None = None,
) -> Report:
    """Load the burger of a HamNet or LightHam (SegNeXt) checkpoint, or of a port of LightHam, into `layer`.

    - `state`: what `read_checkpoint` returns.
    - `source`: "auto", "hamnet", "lightham", or a port of LightHam: "mmseg", "otx" (Geti), "paddleseg". "auto" calls a
      port "lightham".
    - `prefix`: selects one of several burgers, for example "decode_head.hamburger".
    - `strict`: if anything is missing, unexpected, of another shape or built differently, raise CheckpointError with
      the whole report and leave the layer unchanged. With strict=False, load what fits and warn with the report.

    Keys outside the burger never count as errors. Neither do the bases that evaluation starts from: most published
    weights draw new bases at every call and store none, so the layer keeps its own. OTX stores them.

    Rank, steps and gradient are not in the tensors; `infer_options` lists the values of the published weights.
    LightHam (SegNeXt, mmsegmentation) needs version="v1", norm="group", eval_steps=7 and, for training, grad="bptt".
    """
    if not isinstance(layer, Hamburger):
        raise OptionError(f"load_hamburger: the layer must be a hamburger.Hamburger, got a {type(layer).__name__}")
    burger = find_burger(unwrap(state), source, prefix)
    report = Report(burger.source if source == "auto" else source, burger.prefix, problems=_compare(layer, burger))
    report.skipped.update(dict.fromkeys(burger.outside, "outside the burger"))
    values = _match_keys(layer, burger, report)
    if strict and not report.ok:
        report.loaded.clear()
        raise CheckpointError("load_hamburger: the checkpoint does not fit the layer; nothing was loaded", report)
    # every shape was checked above, so this cannot fail half-way
    layer.load_state_dict(values, strict=False)
    if not report.ok:
        warnings.warn(f"load_hamburger: only part of the checkpoint was loaded\n{report}", stacklevel=2)
    return report


def _match_keys(layer: Hamburger, burger: ForeignBurger, report: Report) -> dict[str, Tensor]:
    """Return the tensors that can be loaded, under our names; file every key of both sides in the report."""
    table, layer_state = NAME_TABLES[burger.source], layer.state_dict()
    values: dict[str, Tensor] = {}
    for name, tensor in burger.tensors.items():
        theirs, ours = burger.prefix + name, table.get(name, "")
        if name == "ham_2.bases" and layer.channel_ham is not None:
            report.skipped[theirs] = "bases for one image size; the layer makes its own for any size"
        elif ours not in layer_state and name.endswith(COUNTER):
            report.skipped[theirs] = "a counter that the layer's norm does not have"
        elif ours not in layer_state:
            report.problems[theirs] = f"the layer has no '{ours}'" if ours else f"not part of a {burger.source} burger"
        elif ours in values or ours in report.problems:
            report.problems[theirs] = f"a second source for '{ours}'"
        elif misfit := _explain_misfit(tensor, layer_state[ours]):
            report.problems[ours] = f"from '{theirs}': {misfit}"
        else:
            report.loaded[ours] = theirs
            values[ours] = tensor.reshape(layer_state[ours].shape)
    for ours in layer_state:
        if ours in values or ours in report.problems:
            continue
        random = ours == BASES and layer.ham is not None and layer.ham.dictionary.init in ("random", "fixed")
        if random or ours == "channel_ham.dictionary.multipliers":
            report.kept[ours] = "random bases are never stored; evaluation starts from the layer's own"
        elif ours.endswith(COUNTER):
            report.kept[ours] = "a counter without effect on the output"
        else:
            known = [burger.prefix + theirs for theirs, name in table.items() if name == ours]
            hint = "; a learned or online dictionary needs it, init='random' does not" if ours == BASES else ""
            report.problems[ours] = f"the checkpoint has no {' or '.join(known) or 'such tensor'}{hint}"
    return values


def _explain_misfit(theirs: Tensor, ours: Tensor) -> str | None:
    """Return why the tensor does not fit, None if it fits.

    Trailing axes of length 1 are dropped first: a 1x1 convolution kernel fits a matrix, a vector of one a scalar.
    """
    if theirs.is_floating_point() != ours.is_floating_point():
        return f"its dtype is {theirs.dtype}, the layer's is {ours.dtype}; likely a quantised checkpoint"
    trimmed = theirs.shape
    while len(trimmed) > ours.dim() and trimmed[-1] == 1:
        trimmed = trimmed[:-1]
    if trimmed == ours.shape:
        return None
    return f"its shape is {tuple(theirs.shape)}, the layer's {tuple(ours.shape)}; infer_options returns the sizes"


def _compare(layer: Hamburger, burger: ForeignBurger) -> dict[str, str]:
    """Return differences that the keys do not show: GN weights fit a BN, and a ReLU has no weights at all."""
    problems = {}
    if burger.version != layer.version:
        problems["version"] = f"the checkpoint's burger is '{burger.version}', the layer '{layer.version}'"
    module = layer.cheese[1] if isinstance(layer.cheese, nn.Sequential) else layer.norm
    kinds = {"batch": _BatchNorm, "group": nn.GroupNorm, "none": nn.Identity}
    norm = next((name for name, kind in kinds.items() if isinstance(module, kind)), None)  # None: a custom module
    if norm is not None and burger.norm != norm:
        problems["norm"] = f"the checkpoint's is '{burger.norm}', the layer's '{norm}'"
    if burger.rectify not in (None, layer.rectify):
        theirs, ours = ("a" if there else "no" for there in (burger.rectify, layer.rectify))
        problems["ham"] = (
            f"the checkpoint has {theirs} ReLU before its ham, the layer {ours}: NMF has one, CD and VQ have none"
        )
    return problems


def infer_options(
    state: Mapping[str, Any], source: str = "auto", *, prefix: str | None = None, dual: bool | None = None
) -> dict[str, Any]:
    """Return the options of `hb.Hamburger` that can be read from the checkpoint's tensors.

    Always channels, inner, version, norm and dual; cheese_factor if there is cheese; ham if it must be NMF; heads, rank
    and init if bases are stored. The following are in no tensor, so you have to pass them:

    - HamNet: one-step gradients (our default), steps=6; rank 64 in the published V2, 512 in V2+; norm_momentum=3e-4.
    - LightHam, in SegNeXt and in mmsegmentation: trained with full back-propagation, grad="bptt", and by default
      steps=6, eval_steps=7, rank=64. SegNeXt's T and S have rank 16, B and L 64; mmsegmentation's configurations of B
      and L inherit 16, so check the configuration that came with the file.
    - VQ and CD have the same tensors: pass ham="vq" or ham="cd".
    - heads, unless bases are stored; the groups of a group norm (32 in all published configurations).

    `dual` resolves the one ambiguity: V2+ cheese that halves the width means a dual burger or cheese_factor=2.
    """
    burger = find_burger(unwrap(state), source, prefix)
    inner, channels = burger.find_sizes("lower.weight", 2)
    options: dict[str, Any] = {"channels": channels, "version": burger.version, "norm": burger.norm}
    factor = 1
    if burger.version in ("v2", "v2+"):
        (slim,) = burger.find_sizes("cheese.0.weight", 1)
        if not slim or inner % slim:
            raise CheckpointError(
                f"infer_options: the lower bread's width {inner} must be a multiple of the cheese's (got {slim})"
            )
        factor = inner // slim
    if dual is None:
        dual = _guess_dual(burger, factor)
    elif dual and (burger.version != "v2+" or factor % 2):
        raise OptionError(f"infer_options: a '{burger.version}' burger of width {inner} / {factor} cannot be dual")
    if burger.version in ("v2", "v2+"):
        options["cheese_factor"] = factor // 2 if dual else factor
    options |= {"inner": inner // 2 if dual else inner, "dual": dual}
    if burger.rectify:
        options["ham"] = "nmf"
    else:
        warnings.warn(
            "infer_options: no ReLU after the lower bread, so the ham is VQ or CD: add ham='vq' or ham='cd'",
            stacklevel=2,
        )
    if "ham.bases" in burger.tensors or "ham_1.bases" in burger.tensors:
        heads, _, rank = burger.find_sizes(BASES, 3)
        options |= {"heads": heads, "rank": rank, "init": "fixed"}
    return options


def _guess_dual(burger: ForeignBurger, factor: int) -> bool:
    """Guess whether the burger is dual. A dual burger's factor is even, but so may be that of a single one."""
    if burger.version != "v2+" or factor % 2:
        return False
    if "ham_1.bases" in burger.tensors or "ham_2.bases" in burger.tensors:
        return True
    if "ham.bases" in burger.tensors:
        return False
    warnings.warn(
        f"infer_options: the widths of this V2+ burger fit dual=True, cheese_factor={factor // 2} and dual=False, "
        f"cheese_factor={factor}; assuming the first, the authors' default; pass dual= to choose",
        stacklevel=3,
    )
    return True


# -- find the burger ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForeignBurger:
    """The burger in a checkpoint: its tensors by their names below `prefix`, and the keys outside it."""

    source: str
    prefix: str
    tensors: dict[str, Tensor]
    outside: tuple[str, ...]

    @property
    def version(self) -> str:
        if "coef_ham" in self.tensors or "coef_shortcut" in self.tensors:
            return "v2+"
        return "v2" if self._has("cheese.") else "v1"

    @property
    def norm(self) -> str:
        if self.source == "hamnet" or self._has("ham_out.bn."):
            return "batch"
        return "group" if self._has("ham_out.gn.") or self._has("ham_out._group_norm.") else "none"

    @property
    def rectify(self) -> bool | None:
        """Whether a ReLU comes before the ham: always in LightHam; in HamNet the lower bread's names tell."""
        if self.source == "hamnet" and not self._has("lower_bread."):
            return None
        return self.source != "hamnet" or self._has("lower_bread.0.")

    def find_sizes(self, ours: str, axes: int) -> tuple[int, ...]:
        """Return the lengths of the first axes of the tensor for our key."""
        names = [theirs for theirs, name in NAME_TABLES[self.source].items() if name == ours and theirs in self.tensors]
        shape = tuple(self.tensors[names[0]].shape) if names else ()
        if len(shape) < axes:
            found = f"{names[0]} of shape {shape}" if names else shorten(sorted(self.tensors))
            raise CheckpointError(
                f"infer_options: the {self.source} burger under {shorten(self.prefix)} needs a tensor for '{ours}' of "
                f"at least {axes} axes (got {found})"
            )
        return shape[:axes]

    def _has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.tensors)


def find_burger(state: Mapping[str, Tensor], source: str = "auto", prefix: str | None = None) -> ForeignBurger:
    """Return the burger in a state dict, at any depth; `prefix` selects one of several."""
    check_choice("load_hamburger", "source", source, ("auto", *NAME_TABLES))
    # not the ports: their keys are in LightHam's table
    known = [(name, place) for name in ("hamnet", "lightham") for place in _find_prefixes(state, name)]
    places = known if source == "auto" else [(source, place) for place in _find_prefixes(state, source)]
    if prefix is not None:
        places = [place for place in places if place[1].rstrip(".") == prefix.rstrip(".")]
    if not known:
        raise CheckpointError(
            f"load_hamburger: no key has a part {BREADS['hamnet']} (HamNet) or {BREADS['lightham']} (LightHam and its "
            f"ports), the first are {shorten(list(state))}; weights of this library load with "
            f"layer.load_state_dict(state)"
        )
    if len(places) != 1:
        raise CheckpointError(
            f"load_hamburger: {'several burgers' if places else 'no burger'} for source={source!r}, "
            f"prefix={shorten(prefix)}; choose one that the checkpoint has, as (source, prefix): {shorten(known)}"
        )
    source, prefix = places[0]
    # below a level named after the burger all keys belong to it; without one, other parts of the head are there too
    parts = {name.split(".")[0] for name in NAME_TABLES[source]} | {"ham_2"}
    inside = {
        key: key.removeprefix(prefix)
        for key in state
        if key.startswith(prefix) and (prefix.endswith("hamburger.") or key.removeprefix(prefix).split(".")[0] in parts)
    }
    tensors = {name: state[key] for key, name in inside.items()}
    return ForeignBurger(source, prefix, tensors, tuple(key for key in state if key not in inside))


def _find_prefixes(state: Mapping[str, Tensor], source: str) -> list[str]:
    pattern = re.compile(rf"((?:[^.]+\.)*?)(?:{BREADS[source]})\.")
    return sorted({match[1] for key in state if (match := pattern.match(key))})
