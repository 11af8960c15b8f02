"""The periodic throughput line: what all requests together did in the last interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ninfer_jax.engine.request import EngineCounters

_log = logging.getLogger("ninfer_jax.server")


async def report_throughput(
    counters: Callable[[], EngineCounters], interval_seconds: float
) -> None:
    """Logs a line per interval until cancelled; idle intervals are skipped.

    Intervals end at absolute times, so that they do not drift.
    """
    loop = asyncio.get_running_loop()
    before, started = counters(), loop.time()
    due = started
    while True:
        due += interval_seconds
        await asyncio.sleep(max(0.0, due - loop.time()))
        now, after = loop.time(), counters()
        line = throughput_line(before, after, now - started)
        if line is not None:
            _log.info(line)
        before, started = after, now


def throughput_line(before: EngineCounters, after: EngineCounters, seconds: float) -> str | None:
    """The line of one interval, or None if nothing happened in it."""
    prefilled = after.prefill_tokens - before.prefill_tokens
    decoded = after.decode_tokens - before.decode_tokens
    rounds = after.rounds - before.rounds
    if not (prefilled or decoded or rounds or after.running or after.waiting) or seconds <= 0:
        return None
    parts = [
        "throughput",
        f"{seconds:.1f}s",
        f"prefill {prefilled / seconds:.1f} tok/s ({prefilled})",
        f"decode {decoded / seconds:.1f} tok/s ({decoded})",
        f"running {after.running}",
    ]
    if after.waiting:
        parts.append(f"waiting {after.waiting}")
    if rounds:
        parts.append(f"batch {(after.row_rounds - before.row_rounds) / rounds:.2f}")
    return " | ".join(parts)
