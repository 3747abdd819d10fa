"""Their names and ours, and where in a state dict the burger is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from hamburger.checkpoints.read import CheckpointError
from hamburger.errors import check_choice

AFFINE = ("weight", "bias")
BATCH_NORM = (*AFFINE, "running_mean", "running_var", "num_batches_tracked")

# parts of a head that stand beside the burger where it has no level of its own in the names
NEIGHBOURS = frozenset(
    {"align", "auxiliary_head", "backbone", "conv_cat", "conv_seg", "decode_head", "dropout", "fc", "neck", "squeeze"}
)


def _each(theirs: str, ours: str, parts: Iterable[str]) -> dict[str, str]:
    return {f"{theirs}.{part}": f"{ours}.{part}" for part in parts}


HAMNET = {
    **_each("lower_bread.0", "lower", AFFINE),  # NMF: a Sequential of linear and ReLU
    **_each("lower_bread", "lower", AFFINE),  # CD and VQ: the linear alone
    "cheese.conv.weight": "cheese.0.weight",
    **_each("cheese.bn", "cheese.1", BATCH_NORM),
    "upper_bread.0.weight": "upper.weight",  # V1: a Sequential of linear and BN
    **_each("upper_bread.1", "norm", BATCH_NORM),
    "upper_bread.weight": "upper.weight",  # V2 and V2+: the linear alone
    "coef_ham": "burger_scale",
    "coef_shortcut": "skip_scale",
    "ham.bases": "ham.dictionary.bases",  # stored only where the bases were not drawn anew each time
    "ham_1.bases": "ham.dictionary.bases",  # the half of a dual burger along positions
}
LIGHTHAM = {
    **_each("ham_in.conv", "lower", AFFINE),
    "ham_out.conv.weight": "upper.weight",
    **_each("ham_out.gn", "norm", AFFINE),
    **_each("ham_out.bn", "norm", BATCH_NORM),
    "ham.bases": "ham.dictionary.bases",
}
TABLES = {"hamnet": HAMNET, "lightham": LIGHTHAM, "mmseg": LIGHTHAM}
SLICES = {"hamnet": ("lower_bread", "upper_bread"), "lightham": ("ham_in", "ham_out"), "mmseg": ("ham_in", "ham_out")}
SOURCES = ("auto", *TABLES)


@dataclass(frozen=True)
class Burger:
    """The burger of a checkpoint: its tensors by the names they have inside it, and the keys that lie outside."""

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
        """Whether a ReLU stands before the ham: LightHam always has one, HamNet's shows in the lower bread's names."""
        if self.source == "hamnet" and not self._has("lower_bread."):
            return None
        return self.source != "hamnet" or self._has("lower_bread.0.")

    def find(self, ours: str) -> Tensor:
        """The tensor that our key stands for."""
        for theirs, name in TABLES[self.source].items():
            if name == ours and theirs in self.tensors:
                return self.tensors[theirs]
        raise CheckpointError(
            f"the {self.source} burger under '{self.prefix}' has nothing for '{ours}', only {sorted(self.tensors)}"
        )

    def _has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.tensors)


def find_burger(state: Mapping[str, Tensor], source: str = "auto", prefix: str | None = None) -> Burger:
    """The one burger in a state dict, at whatever depth. `prefix` chooses where there are several."""
    check_choice("load_hamburger", "source", source, SOURCES)
    # "auto" does not look for mmseg: its keys are LightHam's
    found = {name: _prefixes(state, name) for name in (("hamnet", "lightham") if source == "auto" else (source,))}
    places = [(name, place) for name, places in found.items() for place in places]
    if prefix is not None:
        wanted = prefix if not prefix or prefix.endswith(".") else f"{prefix}."
        places = [place for place in places if place[1] == wanted]
    if len(places) != 1:
        raise CheckpointError(_not_one(state, source, prefix, places))
    source, prefix = places[0]
    named = prefix.endswith("hamburger.")  # then all below it is burger; else the rest of the head may be beside it
    inside = {
        key: key.removeprefix(prefix)
        for key in state
        if key.startswith(prefix) and (named or key.removeprefix(prefix).split(".")[0] not in NEIGHBOURS)
    }
    tensors = {name: state[key] for key, name in inside.items()}
    return Burger(source, prefix, tensors, tuple(key for key in state if key not in inside))


def _prefixes(state: Mapping[str, Tensor], source: str) -> list[str]:
    found = set()
    for key in state:
        parts = key.split(".")
        for i, part in enumerate(parts):
            if part in SLICES[source]:
                found.add("".join(f"{p}." for p in parts[:i]))
                break
    return sorted(found)


def _not_one(state: Mapping[str, Tensor], source: str, prefix: str | None, places: list[tuple[str, str]]) -> str:
    if places:
        return f"several burgers in this checkpoint: {places} as (source, prefix); say which by source= and prefix="
    message = f"no burger for source='{source}'" + (f" under prefix='{prefix}'" if prefix is not None else "")
    others = [(name, place) for name in ("hamnet", "lightham") for place in _prefixes(state, name)]
    if others:
        return f"{message}; what is there, as (source, prefix): {others}"
    if any(key.endswith("lower.weight") for key in state):
        return f"{message}; these look like this library's own names, for which layer.load_state_dict(state) is enough"
    return (
        f"{message}: no key has a part named {', '.join(SLICES['hamnet'])} (HamNet) or {', '.join(SLICES['lightham'])} "
        f"(LightHam, mmseg); the first of {len(state)} keys: {list(state)[:8]}"
    )
