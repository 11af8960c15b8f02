"""Look into a `.ninfer` artifact: `python -m ninfer_jax.inspect FILE.ninfer [--json] [--verify]`.

Prints identity, components with their configs, objects by format, bindings, uses and resources;
`--json` prints the same with the complete directory; `--verify` reads every stored word. Exit
status 1 for a bad file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ninfer_jax.artifact.directory import TensorObject, directory_document
from ninfer_jax.artifact.legacy import KNOWN_IDENTITIES, LegacyDirectory
from ninfer_jax.artifact.reader import Artifact, open_artifact, open_container
from ninfer_jax.artifact.verify import verify_artifact
from ninfer_jax.errors import ArtifactError


def summarize(artifact: Artifact) -> dict[str, Any]:
    """Return the facts that both outputs print, as plain JSON values."""
    objects = artifact.objects.values()
    formats: dict[str, dict[str, int]] = {}
    for stored in objects:
        name = stored.format if isinstance(stored, TensorObject) else "resource"
        entry = formats.setdefault(name, {"objects": 0, "bytes": 0})
        entry["objects"] += 1
        entry["bytes"] += stored.bytes
    sizes = {stored.id: stored.bytes for stored in objects}
    return {
        "path": str(artifact.path),
        "container_version": artifact.version,
        "artifact_id": artifact.artifact_id,
        "name": artifact.name,
        "size_bytes": artifact.size_bytes,
        "files": [
            {"path": entry.path, "payload_bytes": entry.payload_bytes} for entry in artifact.files
        ],
        "formats": formats,
        "bindings": dict(Counter(name.split("/")[0] for name in artifact.bindings)),
        "uses": dict(Counter(use.activation_policy or "none" for use in artifact.uses)),
        "resources": {
            f"{name}/{role}": sizes[id]
            for name, component in artifact.components.items()
            for role, id in component.resources.items()
        },
        "provenance": artifact.provenance,
    }


def report(artifact: Artifact) -> Iterator[str]:
    """Yield the lines of the text output; control characters of the file are escaped."""
    facts = summarize(artifact)
    yield f"artifact    {_plain(facts['path'])}"
    yield f"container   version {facts['container_version']}, {facts['size_bytes']:,} bytes"
    yield f"id          {facts['artifact_id'] or '-'}"
    yield f"name        {_plain(facts['name'] or '-')}"
    for entry in facts["files"]:
        yield f"file        {_plain(entry['path'] or '(entry)')}, {entry['payload_bytes']:,} bytes"
    for name, component in artifact.components.items():
        target = f" -> {component.target}" if component.target else ""
        yield _plain(f"component   {name}{target}")
        for member, value in component.config.items():
            yield f"  {_plain(member):30} {_shown(value)}"
        if component.proposal is not None:
            rows = component.proposal.rows
            yield f"  proposal: {component.proposal.domain}" + (f", {rows} rows" if rows else "")
    for name, entry in sorted(facts["formats"].items()):
        yield f"objects     {_plain(name):24} {entry['objects']:6} {entry['bytes']:18,} bytes"
    for title in ("bindings", "uses"):
        for name, count in facts[title].items():
            yield f"{title:11} {_plain(name):24} {count:6}"
    for name, size in facts["resources"].items():
        yield f"resource    {_plain(name):44} {size:14,} bytes"
    if facts["provenance"]:
        yield f"provenance  {_shown(facts['provenance'])}"


def report_unknown(path: str) -> Iterator[str] | None:
    """Yield the objects of a well-formed file of an unpublished identity, or return None."""
    container = open_container(path)
    directory = container.directory
    if not isinstance(directory, LegacyDirectory):
        return None
    if (directory.model_id, directory.weights_id or "groupwise-int") in KNOWN_IDENTITIES:
        return None

    def lines() -> Iterator[str]:
        identity = f"{directory.model_id}/{directory.weights_id or '-'}"
        yield f"container   version {directory.version}, {container.size_bytes:,} bytes"
        yield f"identity    {_plain(identity)}: unknown, objects are listed as they stand"
        for stored in directory.objects.values():
            kind = (
                f"{stored.format} {list(stored.shape)}"
                if isinstance(stored, TensorObject)
                else "resource"
            )
            yield f"object      {_plain(stored.id):60} {kind} {stored.bytes:,} bytes"

    return lines()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ninfer_jax.inspect", description=__doc__)
    parser.add_argument("file", help="entry file of the artifact")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verify", action="store_true", help="read and check every stored word")
    options = parser.parse_args(arguments)
    try:
        unknown = report_unknown(options.file)
        if unknown is not None:
            print("\n".join(unknown))
            return 0
        with open_artifact(options.file) as artifact:
            faults = list(verify_artifact(artifact)) if options.verify else []
            if options.json:
                document = summarize(artifact) | {
                    "directory": directory_document(artifact.directory)
                }
                if options.verify:
                    document["faults"] = faults
                print(json.dumps(document, indent=1))
            else:
                print("\n".join(report(artifact)))
                for fault in faults:
                    print(f"fault       {_plain(fault)}")
                if options.verify and not faults:
                    print("verified    no fault found")
    except ArtifactError as error:
        print(_plain(error.message), file=sys.stderr)
        return 1
    return 1 if faults else 0


def _plain(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


if __name__ == "__main__":
    sys.exit(main())
