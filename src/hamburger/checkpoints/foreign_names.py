"""Find the burger in a foreign state dict and map its names to ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from hamburger.checkpoints.read import CheckpointError
from hamburger.errors import check_choice

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
