"""What became of a file that was loaded into a backbone."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN = 6


@dataclass
class LoadReport:
    """Every entry of the backbone is in `loaded`, `missing` or `mismatched`; those of the file that found no place are
    in `unexpected`, or in `ignored` where a rule says that no backbone has them (classifiers, counters, other parts).
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)  # name -> why
    unexpected: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # everything may fit by name and shape, and still be wrong
    notes: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the backbone's entries that were loaded."""
        return len(self.loaded) / max(len(self.loaded) + len(self.missing) + len(self.mismatched), 1)

    @property
    def complete(self) -> bool:
        return not (self.missing or self.mismatched or self.unexpected or self.doubts)

    def __str__(self) -> str:
        titles = ("loaded", "missing", "mismatched", "unexpected", "ignored")
        lines = [f"{self.source}: " + ", ".join(f"{len(getattr(self, title))} {title}" for title in titles)]
        mismatched = [f"{name} ({why})" for name, why in self.mismatched.items()]
        for title, names in (
            ("missing from the file", self.missing),
            ("mismatched", mismatched),
            ("unexpected in the file", self.unexpected),
            ("ignored", self.ignored),
        ):
            if names:
                more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                lines.append(f"  {title}: {', '.join(names[:SHOWN])}{more}")
        lines += [f"  doubt: {doubt}" for doubt in self.doubts]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
