"""What became of every key, and the error that carries it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hamburger import errors

SHOWN = 8  # keys printed per reason for skipping: a backbone has hundreds, and the object holds them all


@dataclass(frozen=True)
class Report:
    """The outcome of one load. Every key of the checkpoint and of the layer is in exactly one of the mappings.

    - `loaded`: our key -> the checkpoint's key that filled it
    - `held_back`: the same for keys that fit, where others did not and strict=True left the layer as it was
    - `missing`: our key -> why nothing fills it        - `kept`: our key that no source has, and that needs none -> why
    - `mismatched`: our key -> the key meant for it, both shapes and the likely cause
    - `unexpected`: key inside the burger -> why it found no place
    - `skipped`: key outside the burger, or of no use here -> why
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
        """Whether the layer is the checkpoint's burger. Kept and skipped keys do not count against it."""
        return not (self.missing or self.mismatched or self.unexpected or self.conflicts)

    def __str__(self) -> str:
        where = f"under '{self.prefix}'" if self.prefix else "at the top level"
        lines = [f"{self.source} burger {where}: {len(self.loaded)} loaded, {self._count()}"]
        for title in ("conflicts", "mismatched", "missing", "unexpected", "kept"):
            entries: dict[str, str] = getattr(self, title)
            lines += [f"  {title}:"] * bool(entries) + [f"    {key}: {why}" for key, why in entries.items()]
        if self.skipped:
            lines += ["  skipped:", *_by_reason(self.skipped)]
        for title, pairs in (("loaded", self.loaded), ("held back", self.held_back)):
            lines += [f"  {title}:"] * bool(pairs) + [f"    {ours} <- {theirs}" for ours, theirs in pairs.items()]
        return "\n".join(lines)

    def _count(self) -> str:
        titles = ("missing", "kept", "mismatched", "unexpected", "skipped", "conflicts")
        return ", ".join(f"{len(getattr(self, title))} {title}" for title in titles)


def _by_reason(skipped: dict[str, str]) -> list[str]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, why in skipped.items():
        groups[why].append(key)
    lines = []
    for why, keys in groups.items():
        more = f", ... {len(keys) - SHOWN} more in Report.skipped" if len(keys) > SHOWN else ""
        lines.append(f"    {why}: {', '.join(keys[:SHOWN])}{more}")
    return lines


class CheckpointError(errors.CheckpointError, ValueError):
    """A checkpoint that cannot be read, or does not fit the layer; then `report` says which keys and why."""

    def __init__(self, message: str, report: Report | None = None) -> None:
        super().__init__(message if report is None else f"{message}\n{report}")
        self.report = report
