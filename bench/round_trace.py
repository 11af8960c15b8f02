"""Where the time of decode rounds goes, from a profiler trace of a run.

Every operation of a compiled program carries the named scopes it was traced in. The profiler
tells when each ran; a moment belongs to the operation that began last among those running, so
that loops do not count twice what they contain.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import jax

SECTIONS = ("draft", "selector", "verify", "sampling", "fold", "other")
"""`other` is what the program does outside the named parts: the loop itself, its copies."""

_SCOPES = (("selector", "selector"), ("fold", "fold"), ("accept", "sampling"), ("draft", "draft"))
_OPERATION = re.compile(r'%?([\w.\-]+) = [^\n]*?metadata=\{[^\n]*?op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Operation:
    """One run of one operation, in nanoseconds."""

    start: float
    end: float
    name: str


def section_of(op_name: str) -> str:
    """The part of a round that a path of scopes belongs to."""
    parts = op_name.split("/")
    for scope, section in _SCOPES:
        if scope in parts:
            return section
    # Plain decoding has no scope of its own: layers and head are its verification.
    model = any(part == "verify" or part == "head" or part.startswith("layer_") for part in parts)
    return "verify" if model else "other"


def sections_of(program: jax.stages.Compiled) -> dict[str, str]:
    """Operation name -> section, of a compiled program."""
    return {name: section_of(path) for name, path in _OPERATION.findall(program.as_text())}


def traced_operations(run: Callable[[], object], module: str) -> tuple[object, list[Operation]]:
    """Runs under the profiler: the result, and what ran of programs called `module`."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = run()
        (path,) = Path(folder).rglob("*.xplane.pb")
        trace = jax.profiler.ProfileData.from_file(str(path))
    found = []
    for plane in trace.planes:
        for line in plane.lines:
            for event in line.events:
                facts = dict(event.stats)
                if facts.get("hlo_module") == module:
                    end = event.start_ns + event.duration_ns
                    found.append(Operation(event.start_ns, end, str(facts["hlo_op"])))
    return result, found


def seconds_by_section(
    operations: Iterable[Operation], sections: dict[str, str]
) -> dict[str, float]:
    """Seconds of each section; moments at which nothing ran belong to none."""
    ordered = sorted(operations, key=lambda one: one.start)
    borders = sorted({edge for one in ordered for edge in (one.start, one.end)})
    spent = dict.fromkeys(SECTIONS, 0.0)
    running: list[tuple[float, float, str]] = []
    index = 0
    for moment, until in itertools.pairwise(borders):
        while index < len(ordered) and ordered[index].start <= moment:
            one = ordered[index]
            heapq.heappush(running, (-one.start, one.end, one.name))
            index += 1
        while running and running[0][1] <= moment:
            heapq.heappop(running)
        if running:
            spent[sections.get(running[0][2], "other")] += (until - moment) / 1e9
    return spent
