"""Sampling values of a request that does not name them all."""

from __future__ import annotations

import dataclasses

LARGEST_TOP_K = 20
"""Candidates kept at most; a request's `top_k` of 0 means this many."""


@dataclasses.dataclass(frozen=True)
class SamplingValues:
    """Resolved sampling values; the names are those of `engine.request.SamplingParams`."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclasses.dataclass(frozen=True)
class SamplingOverrides:
    """Values that a flag or a request names; None where it names none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


THINKING_PRESET = SamplingValues(temperature=1.0, top_p=0.95, top_k=20)
PLAIN_PRESET = SamplingValues(temperature=0.7, top_p=0.80, top_k=20, presence_penalty=1.5)


def resolve_sampling(
    *,
    thinking: bool,
    process: SamplingOverrides = SamplingOverrides(),
    request: SamplingOverrides = SamplingOverrides(),
    greedy: bool = False,
) -> SamplingValues:
    """Applies, lowest first: the preset of the resolved thinking mode, process flags, the request,
    and `greedy`, which forces temperature 0."""
    values = THINKING_PRESET if thinking else PLAIN_PRESET
    for overrides in (process, request):
        named = {k: v for k, v in dataclasses.asdict(overrides).items() if v is not None}
        values = dataclasses.replace(values, **named)
    if values.top_k == 0:
        values = dataclasses.replace(values, top_k=LARGEST_TOP_K)
    return dataclasses.replace(values, temperature=0.0) if greedy else values
