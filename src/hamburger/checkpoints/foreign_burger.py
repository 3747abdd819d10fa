"""Load Hamburger weights of other implementations: everything fits, or nothing is loaded and a report says why."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger.checkpoints.read import unwrap
from hamburger.errors import CheckpointError, OptionError, check_choice
from hamburger.layers import Hamburger, HamLayer

AFFINE = ("weight", "bias")
BATCH_NORM = (*AFFINE, "running_mean", "running_var", "num_batches_tracked")

# parts of a head that share a prefix with a burger that has no name level of its own
NEIGHBOURS = frozenset(
    {"align", "auxiliary_head", "backbone", "conv_cat", "conv_seg", "decode_head", "dropout", "fc", "neck", "squeeze"}
)


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
    "ham_out.conv.weight": "upper.weight",
    **_map_parts("ham_out.gn", "norm", AFFINE),
    **_map_parts("ham_out.bn", "norm", BATCH_NORM),
    "ham.bases": "ham.dictionary.bases",
}
NAME_TABLES = {"hamnet": HAMNET, "lightham": LIGHTHAM, "mmseg": LIGHTHAM}
SLICES = {"hamnet": ("lower_bread", "upper_bread"), "lightham": ("ham_in", "ham_out"), "mmseg": ("ham_in", "ham_out")}
SOURCES = ("auto", *NAME_TABLES)
# our tensors -> the options that decide the length of each axis; named in the report when a shape does not fit
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
SHOWN = 8  # keys printed per reason for skipping; the report itself holds them all


def load_hamburger(
    layer: Hamburger,
    state: Mapping[str, Any],
    source: str = "auto",
    *,
    strict: bool = True,
    prefix: str | None = None,
) -> Report:
    """Load the burger of a HamNet, LightHam (SegNeXt) or mmsegmentation checkpoint into `layer`.

    - `state`: what `read_checkpoint` returns.
    - `source`: "auto", "hamnet", "lightham" or "mmseg". The last two have the same keys; "auto" calls both "lightham".
    - `prefix`: selects one of several burgers, for example "decode_head.hamburger".
    - `strict`: if anything is missing, unexpected, of another shape or built differently, raise CheckpointError with
      the whole report and leave the layer unchanged. With strict=False, load what fits and warn with the report.

    Keys outside the burger never count as errors. Neither do the bases that evaluation starts from: the published
    weights draw new bases at every call and store none, so the layer keeps its own.

    Rank, steps and gradient are not in the tensors; `infer_options` lists the values of the published weights.
    LightHam (SegNeXt, mmsegmentation) needs version="v1", norm="group", eval_steps=7 and, for training, grad="bptt".
    """
    if not isinstance(layer, Hamburger):
        raise OptionError(f"load_hamburger: the layer must be a hamburger.Hamburger, got a {type(layer).__name__}")
    burger = find_burger(unwrap(state), source, prefix)
    report = Report(burger.source if source == "auto" else source, burger.prefix)
    report.skipped.update({key: _describe_outside(key, burger.prefix) for key in burger.outside})
    report.conflicts.update(_find_conflicts(layer, burger))
    values = _match_keys(layer, burger, report)
    if strict and not report.ok:
        report = replace(report, loaded={}, held_back=report.loaded)
        raise CheckpointError("load_hamburger: the checkpoint does not fit the layer; nothing was loaded", report)
    # every shape was checked above, so this cannot fail half-way
    layer.load_state_dict(values, strict=False)
    if not report.ok:
        warnings.warn(f"load_hamburger: only part of the checkpoint was loaded\n{report}", stacklevel=2)
    return report


def _match_keys(layer: Hamburger, burger: ForeignBurger, report: Report) -> dict[str, Tensor]:
    """Return the tensors that can be loaded, under our names; file every key of both sides in the report."""
    wanted = layer.state_dict()
    values: dict[str, Tensor] = {}
    for name, tensor in burger.tensors.items():
        theirs, ours = burger.prefix + name, NAME_TABLES[burger.source].get(name)
        if name == "ham_2.bases" and layer.channel_ham is not None:
            report.skipped[theirs] = "bases for one image size; the layer makes its own for any size"
        elif ours is None:
            report.unexpected[theirs] = f"no such name in a {burger.source} burger"
        elif ours not in wanted and name.endswith(COUNTER):
            report.skipped[theirs] = "a counter that the layer's norm does not have"
        elif ours not in wanted:
            report.unexpected[theirs] = f"the layer has no '{ours}'"
        elif ours in report.loaded or ours in report.mismatched:
            report.unexpected[theirs] = f"a second source for '{ours}'"
        elif misfit := _explain_misfit(ours, tensor, wanted[ours]):
            report.mismatched[ours] = f"from '{theirs}': {misfit}"
        else:
            report.loaded[ours] = theirs
            values[ours] = tensor.reshape(wanted[ours].shape)
    for ours in wanted:
        if ours not in report.loaded and ours not in report.mismatched:
            why = _explain_kept(layer, ours)
            target = report.missing if why is None else report.kept
            target[ours] = why or _explain_missing(ours, burger)
    return values


def _explain_misfit(ours: str, theirs: Tensor, wanted: Tensor) -> str | None:
    """Return why the tensor does not fit, None if it fits.

    Trailing axes of length 1 are dropped first: a 1x1 convolution kernel fits a matrix, a vector of one a scalar.
    """
    shape, want = tuple(theirs.shape), tuple(wanted.shape)
    if theirs.is_floating_point() != wanted.is_floating_point():
        return f"its dtype is {theirs.dtype}, the layer's is {wanted.dtype}; likely a quantised checkpoint"
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


def _find_conflicts(layer: Hamburger, burger: ForeignBurger) -> dict[str, str]:
    """Return differences that the keys do not show: GN weights fit a BN, and a ReLU has no weights at all."""
    conflicts = {}
    if burger.version != layer.version:
        conflicts["version"] = f"the checkpoint's burger is '{burger.version}', the layer '{layer.version}'"
    norm = _find_norm(layer)
    if norm is not None and burger.norm != norm:
        conflicts["norm"] = f"the checkpoint's is '{burger.norm}', the layer's '{norm}'"
    if burger.rectify not in (None, layer.rectify):
        theirs, ours = ("a" if there else "no" for there in (burger.rectify, layer.rectify))
        conflicts["ham"] = (
            f"the checkpoint has {theirs} ReLU before its ham, the layer {ours}: NMF has one, CD and VQ have none"
        )
    return conflicts


def _find_norm(layer: Hamburger) -> str | None:
    """Return the name of the layer's norm, None for a custom module."""
    norm = layer.cheese[1] if isinstance(layer.cheese, nn.Sequential) else layer.norm
    kinds = {"batch": _BatchNorm, "group": nn.GroupNorm, "none": nn.Identity}
    return next((name for name, kind in kinds.items() if isinstance(norm, kind)), None)


def _explain_kept(layer: Hamburger, ours: str) -> str | None:
    """Return why the layer may keep its own value of a key that the checkpoint lacks, None if it may not."""
    if ours == "ham.dictionary.bases" and isinstance(layer.ham, HamLayer):
        if layer.ham.dictionary.init in ("random", "fixed"):
            return "random bases are never stored; evaluation starts from the layer's own"
    elif ours == "channel_ham.dictionary.multipliers":
        return "only this library stores it; evaluation starts from the layer's own bases along channels"
    elif ours.endswith(COUNTER):
        return "a counter without effect on the output"
    return None


def _explain_missing(ours: str, burger: ForeignBurger) -> str:
    if ours == "ham.dictionary.bases":
        return "no bases in the checkpoint, but a learned or online dictionary needs them; try init='random'"
    known = [burger.prefix + theirs for theirs, name in NAME_TABLES[burger.source].items() if name == ours]
    return f"the checkpoint has no {' or '.join(known)}" if known else f"a {burger.source} burger has no such tensor"


def _describe_outside(key: str, prefix: str) -> str:
    """Return the part a key belongs to: the first level of its name that differs from the burger's prefix."""
    levels = zip(key.split("."), prefix.split("."), strict=False)
    part = next((theirs for theirs, level in levels if theirs != level), key)
    return f"outside the burger, in {part}"


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
    inner, channels = _sizes(burger, "lower.weight", 2)
    options: dict[str, Any] = {"channels": channels, "version": burger.version, "norm": burger.norm}
    factor = 1
    if burger.version in ("v2", "v2+"):
        slim = _sizes(burger, "cheese.0.weight", 1)[0]
        if slim == 0 or inner % slim:
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
        heads, _, rank = _sizes(burger, "ham.dictionary.bases", 3)
        options |= {"heads": heads, "rank": rank, "init": "fixed"}
    return options


def _sizes(burger: ForeignBurger, ours: str, count: int) -> tuple[int, ...]:
    shape = tuple(burger.find(ours).shape)
    if len(shape) < count:
        raise CheckpointError(
            f"infer_options: the tensor of '{ours}' must have at least {count} axes (got shape {shape})"
        )
    return shape[:count]


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
        return "group" if self._has("ham_out.gn.") else "none"

    @property
    def rectify(self) -> bool | None:
        """Whether a ReLU comes before the ham: always in LightHam; in HamNet the lower bread's names tell."""
        if self.source == "hamnet" and not self._has("lower_bread."):
            return None
        return self.source != "hamnet" or self._has("lower_bread.0.")

    def find(self, ours: str) -> Tensor:
        """Return the tensor for our key."""
        for theirs, name in NAME_TABLES[self.source].items():
            if name == ours and theirs in self.tensors:
                return self.tensors[theirs]
        raise CheckpointError(
            f"load_hamburger: the {self.source} burger under '{self.prefix}' has no tensor for '{ours}' "
            f"(got {sorted(self.tensors)})"
        )

    def _has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.tensors)


def find_burger(state: Mapping[str, Tensor], source: str = "auto", prefix: str | None = None) -> ForeignBurger:
    """Return the burger in a state dict, at any depth; `prefix` selects one of several."""
    check_choice("load_hamburger", "source", source, SOURCES)
    # "auto" does not search for mmseg: its keys are LightHam's
    sources = ("hamnet", "lightham") if source == "auto" else (source,)
    places = [(name, place) for name in sources for place in _find_prefixes(state, name)]
    if prefix is not None:
        wanted = prefix if not prefix or prefix.endswith(".") else f"{prefix}."
        places = [place for place in places if place[1] == wanted]
    if len(places) != 1:
        raise CheckpointError(_explain_count(state, source, prefix, places))
    source, prefix = places[0]
    named = prefix.endswith("hamburger.")  # then all keys below belong to it; else other parts of the head may too
    inside = {
        key: key.removeprefix(prefix)
        for key in state
        if key.startswith(prefix) and (named or key.removeprefix(prefix).split(".")[0] not in NEIGHBOURS)
    }
    tensors = {name: state[key] for key, name in inside.items()}
    return ForeignBurger(source, prefix, tensors, tuple(key for key in state if key not in inside))


def _find_prefixes(state: Mapping[str, Tensor], source: str) -> list[str]:
    prefixes = set()
    for key in state:
        parts = key.split(".")
        for i, part in enumerate(parts):
            if part in SLICES[source]:
                prefixes.add("".join(f"{p}." for p in parts[:i]))
                break
    return sorted(prefixes)


def _explain_count(state: Mapping[str, Tensor], source: str, prefix: str | None, places: list[tuple[str, str]]) -> str:
    if places:
        return f"load_hamburger: several burgers, as (source, prefix): {places}; choose one with source= and prefix="
    under = "" if prefix is None else f" under prefix='{prefix}'"
    message = f"load_hamburger: no burger for source='{source}'{under}"
    others = [(name, place) for name in ("hamnet", "lightham") for place in _find_prefixes(state, name)]
    if others:
        return f"{message}; the checkpoint has, as (source, prefix): {others}"
    if any(key.endswith("lower.weight") for key in state):
        return f"{message}; the names are this library's own: use layer.load_state_dict(state)"
    return (
        f"{message}; no key has a part named {', '.join(SLICES['hamnet'])} (HamNet) or {', '.join(SLICES['lightham'])} "
        f"(LightHam, mmseg); the first of {len(state)} keys: {list(state)[:8]}"
    )


# -- report ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What happened to every key of a load: each key of the checkpoint and of the layer is in exactly one mapping.

    - `loaded`: our key -> the checkpoint's key
    - `held_back`: the same for keys that fit, if others did not and strict=True left the layer unchanged
    - `missing`: our key -> why the checkpoint has no value for it
    - `kept`: our key that the checkpoint lacks and that keeps its value -> why
    - `mismatched`: our key -> the checkpoint's key, both shapes and the likely cause
    - `unexpected`: key inside the burger -> why it was not used
    - `skipped`: key outside the burger, or without use here -> why
    - `conflicts`: option -> how the checkpoint's burger differs from the layer although the keys may fit
    """

    source: str
    prefix: str
    loaded: dict[str, str] = field(default_factory=dict)
    held_back: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    mismatched: dict[str, str] = field(default_factory=dict)
    unexpected: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the layer matches the checkpoint's burger; kept and skipped keys do not count."""
        return not (self.missing or self.mismatched or self.unexpected or self.conflicts)

    def __str__(self) -> str:
        titles = ("loaded", "missing", "kept", "mismatched", "unexpected", "skipped", "conflicts")
        counts = ", ".join(f"{len(getattr(self, title))} {title}" for title in titles)
        where = f"under '{self.prefix}'" if self.prefix else "at the top level"
        lines = [f"{self.source} burger {where}: {counts}"]
        sections = {
            title: [f"{key}: {why}" for key, why in getattr(self, title).items()]
            for title in ("conflicts", "mismatched", "missing", "unexpected", "kept")
        }
        sections["skipped"] = self._group_skipped()
        sections["loaded"] = [f"{ours} <- {theirs}" for ours, theirs in self.loaded.items()]
        sections["held back"] = [f"{ours} <- {theirs}" for ours, theirs in self.held_back.items()]
        for title, entries in sections.items():
            lines += [f"  {title}:", *(f"    {entry}" for entry in entries)] if entries else []
        return "\n".join(lines)

    def _group_skipped(self) -> list[str]:
        """Return one line per reason, with the first keys skipped for it."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for key, why in self.skipped.items():
            groups[why].append(key)
        return [
            f"{why}: {', '.join(keys[:SHOWN])}"
            + (f", ... {len(keys) - SHOWN} more in Report.skipped" if len(keys) > SHOWN else "")
            for why, keys in groups.items()
        ]
