"""Where fitted profiles come from: this project's own kernels (`calibrate measure`), or published tables."""

from __future__ import annotations

from typing import NamedTuple

from sim.catalogue import entry_names, folder

OWN_KEY = "measured_by"
HEAD_KEYS = ("gpu", "date", OWN_KEY, "kernel_source")


class Origin(NamedTuple):
    """The head of a profile."""

    gpu: str
    date: str
    measured_here: bool  # by this project's kernels, on that GPU
    kernel_source: str

    @property
    def text(self) -> str:
        """A few words for a table."""
        return "own kernels" if self.measured_here else "public tables"


def origins() -> dict[str, Origin]:
    """The origin of every fitted profile of the catalogue, by GPU name."""
    return {name: _origin((folder("fitted") / f"{name}.yaml").read_text(encoding="utf-8")) for name in _names()}


def _names() -> list[str]:
    return entry_names("fitted")


def _origin(text: str) -> Origin:
    """Read the scalars at the head of a profile; its long sections, which take long to parse, are left alone."""
    head: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in HEAD_KEYS:
            head[key] = value.strip().strip("'\"")
        if key == "gemm":
            break
    return Origin(head.get("gpu", ""), head.get("date", ""), OWN_KEY in head, head.get("kernel_source", ""))


def summary(found: dict[str, Origin]) -> str:
    """One sentence for people: which profiles were measured by own kernels, which were fitted to public tables."""
    own = [name for name, origin in found.items() if origin.measured_here]
    public = [name for name, origin in found.items() if not origin.measured_here]
    return (
        f"fitted profiles measured by this project's own kernels: {', '.join(own) or 'none so far'}; "
        f"fitted to published measurements: {', '.join(public) or 'none'}"
    )
