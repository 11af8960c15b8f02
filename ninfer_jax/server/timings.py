"""The `timings` member: wall clock from admission over the first to the last token."""

from __future__ import annotations

from msgspec import UNSET

from ninfer_jax.engine.request import Finished
from ninfer_jax.server.schemas import Timings


def final_timings(finished: Finished) -> Timings:
    """Timings of a finished request."""
    usage, drafting = finished.usage, finished.speculation
    timings = measured(
        cached=usage.cached_tokens,
        prompt=usage.prompt_tokens,
        prompt_seconds=finished.timing.wall_prompt,
        predicted=usage.completion_tokens,
        predicted_seconds=finished.timing.wall_predicted,
    )
    if drafting.drafted_tokens:
        timings.draft_n = drafting.drafted_tokens
        timings.draft_n_accepted = drafting.accepted_tokens
    return timings


def measured(
    *,
    cached: int,
    prompt: int,
    prompt_seconds: float,
    predicted: int,
    predicted_seconds: float,
) -> Timings:
    """Timings from counts and windows; `prompt` includes the `cached` tokens.

    The first token belongs to the prompt window: n tokens in t seconds are (n - 1) / t.
    """
    computed = prompt - cached
    return Timings(
        cache_n=cached,
        prompt_n=computed,
        prompt_ms=prompt_seconds * 1000,
        prompt_per_token_ms=_quotient(prompt_seconds * 1000, computed),
        prompt_per_second=_quotient(computed, prompt_seconds),
        predicted_n=predicted,
        predicted_ms=predicted_seconds * 1000,
        predicted_per_token_ms=_quotient(predicted_seconds * 1000, max(predicted - 1, 0)),
        predicted_per_second=_quotient(max(predicted - 1, 0), predicted_seconds),
        draft_n=UNSET,
        draft_n_accepted=UNSET,
    )


def _quotient(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
