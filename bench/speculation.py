"""What drafting is worth on the demo: acceptance, tokens per round and decode speed.

    python -m bench.speculation [--quick] [--json FILE]

Held-out prompts of every workload go through the server one at a time. First no drafter, MTP
with K = 3 and DFlash2 with K = 7 take turns prompt by prompt, at temperature 0 and 0.6; then
every K takes turns with no drafter on two workloads. Decode speed is the engine's own: tokens
behind the first over the time of the rounds. As the speed of a machine drifts, it is also given
as `times_none`, a ratio within the turns. Plots go to `docs/`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path

from bench.machine import RESULTS, machine, write_result
from bench.served_demo import Reply, ServedDemo
from ninfer_jax.demo.generator import SCORED, generate

WORKLOADS = ("reasoning", "structured", "chinese", "tools", "story")
SWEPT = ("reasoning", "story")
Choice = tuple[str, int]
"""A drafter and its K."""

NONE: Choice = ("none", 0)
MAIN: tuple[Choice, ...] = (NONE, ("mtp", 3), ("dflash2", 7))
SWEEP = {"mtp": range(1, 6), "dflash2": range(1, 11)}
TEMPERATURES = (0.0, 0.6)
SEED = 30_000
PLOT = Path("docs/speculation.svg")

Report = dict[str, dict[str, dict]]


@dataclasses.dataclass
class Total:
    """Sums over the replies of one workload with one drafter."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fallbacks: int = 0
    tokens: int = 0
    decode: float = 0.0
    chunks: int = 0
    stream: float = 0.0
    positions: list[int] = dataclasses.field(default_factory=list)

    def add(self, reply: Reply) -> None:
        """One more reply."""
        drafts, usage = reply.outcome.speculation, reply.outcome.usage
        self.rounds += drafts.rounds
        self.drafted += drafts.drafted_tokens
        self.accepted += drafts.accepted_tokens
        self.fallbacks += drafts.fallback_steps
        self.tokens += usage.completion_tokens - 1
        self.decode += reply.outcome.timing.decode
        self.chunks += reply.chunks
        self.stream += reply.seconds
        width = max(len(self.positions), len(drafts.accepted_per_position))
        padded = [
            [*counts, *[0] * (width - len(counts))]
            for counts in (self.positions, drafts.accepted_per_position)
        ]
        self.positions = [sum(pair) for pair in zip(*padded, strict=True)]

    def report(self) -> dict:
        """The numbers of the JSON report."""
        rounds = max(self.rounds, 1)
        return {
            "tokens_per_round": 1 + self.accepted / rounds if self.rounds else 1.0,
            "acceptance": self.accepted / self.drafted if self.drafted else None,
            "accepted_per_position": [count / rounds for count in self.positions],
            "decode_tok_s": self.tokens / self.decode if self.decode else None,
            "rounds": self.rounds,
            "fallback_steps": self.fallbacks,
            "tokens_per_stream_event": (self.tokens + 1) / max(self.chunks, 1),
        }


def prompts(workload: str, count: int) -> list:
    """Held-out samples."""
    return list(itertools.islice(generate(SCORED[workload], "held_out", SEED), count))


def served(drafter: str, draft_tokens: int) -> ServedDemo:
    """A server with that drafter."""
    flags = () if drafter == "none" else ("--spec", drafter, "--draft-tokens", str(draft_tokens))
    return ServedDemo(*flags)


def put(report: Report, workload: str, choice: Choice, total: Total, base: Total) -> None:
    """Where a result stands in the report: `none` has no K level."""
    drafter, draft_tokens = choice
    place, numbers = report.setdefault(workload, {}), total.report()
    if drafter == "none":
        place[drafter] = numbers
        return
    numbers["times_none"] = numbers["decode_tok_s"] / base.report()["decode_tok_s"]
    place.setdefault(drafter, {})[str(draft_tokens)] = numbers


def take_turns(
    servers: dict[Choice, ServedDemo], workload: str, temperature: float, count: int
) -> dict[Choice, Total]:
    """Every server answers every prompt, prompt by prompt."""
    samples, totals = prompts(workload, count), {choice: Total() for choice in servers}
    for server in servers.values():
        server.ask(samples[0], temperature, SEED)
    for number, sample in enumerate(samples):
        for choice, server in servers.items():
            totals[choice].add(server.ask(sample, temperature, SEED + number))
    return totals


def comparison(report: Report, count: int) -> None:
    """The main table: one K of each drafter, all workloads, two temperatures."""
    servers = {choice: served(*choice) for choice in MAIN}
    for temperature, workload in itertools.product(TEMPERATURES, WORKLOADS):
        totals = take_turns(servers, workload, temperature, count)
        name = workload if temperature == 0 else f"{workload}@{temperature:g}"
        for choice, total in totals.items():
            put(report, name, choice, total, totals[NONE])
        print_rows(report, name)
    for server in servers.values():
        server.close()


def sweep(report: Report, count: int, quick: bool) -> None:
    """The other K of every drafter on some workloads, greedy."""
    plain = served(*NONE)
    for drafter, lengths in SWEEP.items():
        for draft_tokens in list(lengths)[:: 3 if quick else 1]:
            choice = (drafter, draft_tokens)
            if choice in MAIN:
                continue
            servers = {NONE: plain, choice: served(*choice)}
            for workload in SWEPT:
                totals = take_turns(servers, workload, 0.0, count)
                put(report, workload, choice, totals[choice], totals[NONE])
            servers[choice].close()
    plain.close()
    for workload in SWEPT:
        print_rows(report, workload)


def print_rows(report: Report, workload: str) -> None:
    """The table of one workload."""
    found = report[workload]
    rows = [("none", "", found["none"])]
    for drafter in SWEEP:
        by_length = found.get(drafter, {})
        rows += [(drafter, k, by_length[k]) for k in sorted(by_length, key=int)]
    for drafter, length, numbers in rows:
        acceptance = numbers["acceptance"]
        share = "" if acceptance is None else f"{100 * acceptance:5.1f} %"
        first = numbers["accepted_per_position"][:1]
        print(
            f"{workload:15s} {drafter:8s} {length:>3s} | tokens/round "
            f"{numbers['tokens_per_round']:.2f} | accepted {share:7s} | first "
            f"{first[0] if first else 0:.2f} | decode {numbers['decode_tok_s']:7.1f} tok/s "
            f"{numbers.get('times_none', 1):.2f}x",
            flush=True,
        )


def plot(report: Report, path: Path) -> None:
    """Acceptance by position per workload, and decode speed by K."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2))
    for axis, (drafter, length) in zip(axes, MAIN[:0:-1], strict=False):
        for workload in WORKLOADS:
            shares = report[workload][drafter][str(length)]["accepted_per_position"]
            axis.plot(range(1, len(shares) + 1), shares, marker="o", label=workload)
        axis.set(
            title=f"{drafter}, K = {length}, greedy",
            xlabel="position in the block",
            ylabel="share of rounds accepted",
            ylim=(0, 1.02),
        )
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend(fontsize=8)
    for workload in SWEPT:
        for drafter in SWEEP:
            found = sorted((int(k), v) for k, v in report[workload][drafter].items())
            speeds = [numbers["times_none"] for _, numbers in found]
            axes[2].plot([k for k, _ in found], speeds, marker="o", label=f"{workload}, {drafter}")
    axes[2].axhline(1, color="grey", linewidth=0.8)
    axes[2].set(title="decode speed", xlabel="K", ylabel="times no drafting", ylim=(0, None))
    axes[2].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures, prints, plots."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few prompts and few K")
    parser.add_argument("--json", type=Path, default=RESULTS / "speculation.json")
    parser.add_argument("--plot", type=Path, default=PLOT)
    options = parser.parse_args()
    report: Report = {}
    print(machine("jax", "jaxlib", model="ninfer-demo", kv="bf16", lanes=1))
    comparison(report, 6 if options.quick else 100)
    sweep(report, 3 if options.quick else 10, options.quick)
    plot(report, options.plot)
    write_result(options.json, report)
    print(f"{options.json} and {options.plot}")


if __name__ == "__main__":
    main()
