"""Who may enter: the lifetime gate and the pending deadline.

A server with C lanes and P places behind them holds at most C + P requests, counted from the
start of preparation until the reply has been released. One more is refused at once.
"""

from __future__ import annotations

from ninfer_jax.errors import OverloadedError, QueueTimeoutError


class Ticket:
    """One place inside the gate; `release` may be called again without effect."""

    def __init__(self, gate: LifetimeGate):
        self._gate: LifetimeGate | None = gate

    def release(self) -> None:
        if self._gate is not None:
            self._gate.inside -= 1
            self._gate = None


class LifetimeGate:
    """Counts the requests inside; used from the event loop only.

    Attributes:
      capacity: C + P.
      inside: requests inside now.
    """

    def __init__(self, *, lanes: int, pending: int):
        self.capacity = lanes + pending
        self.inside = 0

    def enter(self) -> Ticket:
        """Takes a place. Raises `OverloadedError` if there is none."""
        if self.inside >= self.capacity:
            raise OverloadedError(
                f"all {self.capacity} places (running and waiting) are taken; "
                "send the request again later"
            )
        self.inside += 1
        return Ticket(self)


def preparation_timeout(seconds: float) -> QueueTimeoutError:
    """The error of a request whose deadline passed before it reached the engine."""
    return QueueTimeoutError(
        f"the request was not ready to start within {seconds:g} s of its arrival; "
        "send it again later"
    )
