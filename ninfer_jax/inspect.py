"""Look into a `.ninfer` artifact: `python -m ninfer_jax.inspect FILE.ninfer [--json] [--verify]`.

Prints identity, components with their configs, objects by format, bindings, uses and resources;
`--json` prints the same with the complete directory; `--verify` reads every stored word; `--sha256`
hashes every file and says which official artifact it is. Exit status 1 for a bad file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ninfer_jax.artifact.directory import TensorObject, directory_document
from ninfer_jax.artifact.formats import NVFP4
from ninfer_jax.artifact.legacy import KNOWN_IDENTITIES, LegacyDirectory
from ninfer_jax.artifact.published import PublishedFile, file_sha256, identify, of_size
from ninfer_jax.artifact.reader import Artifact, Container, open_artifact, open_container
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
        "profile": "nvfp4" if NVFP4 in formats else "groupwise-int",
        "size_bytes": artifact.size_bytes,
        "same_size_as": _same_size(artifact.size_bytes, len(artifact.files)),
        "files": [
            {"path": entry.path, "payload_bytes": entry.payload_bytes} for entry in artifact.files
        ],
        "objects": len(artifact.objects),
        "formats": formats,
        "bindings": dict(Counter(name.split("/")[0] for name in artifact.bindings)),
        "uses": dict(Counter(use.activation_policy or "none" for use in artifact.uses)),
        "input_divisors": sum(bool(use.auxiliaries) for use in artifact.uses),
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
    yield f"name        {_plain(facts['name'] or '-')}, {facts['profile']}"
    yield from _size_hint(facts["same_size_as"])
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
    yield f"objects     {'all':24} {facts['objects']:6}"
    for name, entry in sorted(facts["formats"].items()):
        yield f"objects     {_plain(name):24} {entry['objects']:6} {entry['bytes']:18,} bytes"
    for title in ("bindings", "uses"):
        for name, count in facts[title].items():
            yield f"{title:11} {_plain(name):24} {count:6}"
    if facts["input_divisors"]:
        yield f"uses        {'with an input divisor':24} {facts['input_divisors']:6}"
    for name, size in facts["resources"].items():
        yield f"resource    {_plain(name):44} {size:14,} bytes"
    if facts["provenance"]:
        yield f"provenance  {_shown(facts['provenance'])}"


def unknown_identity(container: Container) -> LegacyDirectory | None:
    """Return the directory of a version 1 or 2 file whose identity is not known, or None."""
    directory = container.directory
    if not isinstance(directory, LegacyDirectory):
        return None
    if (directory.model_id, directory.weights_id or "groupwise-int") in KNOWN_IDENTITIES:
        return None
    return directory


def summarize_unknown(container: Container, directory: LegacyDirectory) -> dict[str, Any]:
    """Return what can be said of a file whose identity is not known, as plain JSON values."""
    return {
        "path": str(container.path),
        "container_version": directory.version,
        "unknown_identity": [directory.model_id, directory.weights_id],
        "size_bytes": container.size_bytes,
        "same_size_as": _same_size(container.size_bytes, 1),
        "objects": [asdict(stored) for stored in directory.objects.values()],
    }


def report_unknown(container: Container, directory: LegacyDirectory) -> Iterator[str]:
    """Yield the objects of a well-formed file whose identity is not known."""
    identity = f"{directory.model_id}/{directory.weights_id or '-'}"
    yield f"container   version {directory.version}, {container.size_bytes:,} bytes"
    yield f"identity    {_plain(identity)}: unknown, objects are listed as they stand"
    yield from _size_hint(_same_size(container.size_bytes, 1))
    for stored in directory.objects.values():
        kind = (
            f"{stored.format} {list(stored.shape)}"
            if isinstance(stored, TensorObject)
            else "resource"
        )
        yield f"object      {_plain(stored.id):60} {kind} {stored.bytes:,} bytes"


def hash_files(paths: Sequence[Path]) -> dict[str, Any]:
    """Return `sha256`, file name -> digest, and `official`, what that makes of a set of files.

    Official artifacts are single files: `official` is None for any other set. Progress is shown
    on stderr where that is a terminal.
    """
    try:
        total = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise ArtifactError(f"{error.filename}: cannot be read: {error.strerror}") from None
    with tqdm(total=total, unit="B", unit_scale=True, desc="sha256", disable=None) as bar:
        digests = {path.name: file_sha256(path, bar.update) for path in paths}
    found = identify(total, digests[paths[0].name]) if len(paths) == 1 else None
    return {"sha256": digests, "official": None if found is None else _published_facts(found)}


def report_hashes(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the text output for the result of `hash_files`."""
    for name, digest in facts["sha256"].items():
        yield f"sha256      {digest}  {_plain(name)}"
    official = facts["official"]
    if official is None:
        yield "official    not one of the official artifacts known to this version"
    else:
        revisions = ", ".join(official["revisions"]) or "not known"
        yield f"official    {official['name']}, revision {revisions}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ninfer_jax.inspect", description=__doc__)
    parser.add_argument("file", help="entry file of an artifact, or a converted checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verify", action="store_true", help="read and check every stored word")
    parser.add_argument("--sha256", action="store_true", help="hash the files and identify them")
    options = parser.parse_args(arguments)
    try:
        if Path(options.file).is_dir():
            return inspect_checkpoint(Path(options.file), options)
        container = open_container(options.file)
        container.payload.close()
        directory = unknown_identity(container)
        if directory is not None:
            hashes = hash_files([container.path]) if options.sha256 else {}
            if options.json:
                print(json.dumps(summarize_unknown(container, directory) | hashes, indent=1))
                return 0
            print("\n".join(report_unknown(container, directory)))
            if hashes:
                print("\n".join(report_hashes(hashes)))
            return 0
        with open_artifact(options.file) as artifact:
            hashes = hash_files(artifact.file_paths) if options.sha256 else {}
            return show(artifact, options, hashes)
    except ArtifactError as error:
        print(_plain(error.message), file=sys.stderr)
        return 1


def inspect_checkpoint(path: Path, options: argparse.Namespace) -> int:
    """The same for a converted checkpoint, which names the digests of its source."""
    # Imported here: looking into an artifact needs neither jax nor Orbax.
    from ninfer_jax.checkpoint.checkpoint_source import open_checkpoint, source_digests

    with open_checkpoint(path) as artifact:
        return show(artifact, options, {"source_sha256": source_digests(path)})


def show(artifact: Artifact, options: argparse.Namespace, hashes: dict[str, Any]) -> int:
    """Print one opened artifact; returns the exit status."""
    faults = list(verify_artifact(artifact)) if options.verify else []
    if options.json:
        document = summarize(artifact) | hashes
        document["directory"] = directory_document(artifact.directory)
        if options.verify:
            document["faults"] = faults
        print(json.dumps(document, indent=1))
        return 1 if faults else 0
    print("\n".join(report(artifact)))
    for name, digest in hashes.get("source_sha256", {}).items():
        print(f"source      {digest}  {_plain(name)}")
    if "sha256" in hashes:
        print("\n".join(report_hashes(hashes)))
    for fault in faults:
        print(f"fault       {_plain(fault)}")
    if options.verify and not faults:
        print("verified    no fault found")
    return 1 if faults else 0


def _same_size(size: int, files: int) -> list[str]:
    return [published.name for published in of_size(size)] if files == 1 else []


def _size_hint(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"size        that of {name}; --sha256 tells whether it is"


def _published_facts(found: PublishedFile) -> dict[str, Any]:
    return {
        "name": found.name,
        "model": found.model,
        "profile": found.profile,
        "container": found.container,
        "file_name": found.file_name,
        "revisions": list(found.revisions),
    }


def _plain(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


if __name__ == "__main__":
    sys.exit(main())
