"""Real processes: the server on the demo artifact, on a free loopback port."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

START_SECONDS = 300


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass
class ServerProcess:
    """A server and what it has written to stderr so far."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]
    listening: threading.Event
    reader: threading.Thread

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        """A client of its own connection pool."""
        return httpx.Client(base_url=self.url, timeout=120)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        return status

    def metric(self, name: str) -> float:
        """Value of an unlabelled metric."""
        text = httpx.get(f"{self.url}/metrics").text
        values = [line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")]
        assert values, f"{name} is not exported:\n{text}"
        return float(values[0])


def start_server(*arguments: str, wait: bool = True) -> ServerProcess:
    """Starts `ninfer_jax.serve` with the arguments and a free port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "ninfer_jax.serve", *arguments, "--port", str(port)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ.copy(),
    )
    lines: list[str] = []
    listening = threading.Event()

    def read() -> None:
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            if "listening on" in line:
                listening.set()
        listening.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    server = ServerProcess(process, port, lines, listening, reader)
    if wait:
        assert listening.wait(START_SECONDS), "\n".join(lines)
        assert process.poll() is None, "\n".join(lines)
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """The demo server, shared by the tests of a module."""
    running = start_server("--config", "demo.py")
    yield running
    if running.process.poll() is None:
        running.stop()
