"""Container framing: magic words, headers, and where the payload of each file begins.

entry, versions 1 and 2   magic[8], json_bytes u64, JSON, zeros to a multiple of 4096
entry, version 3          magic[8], json_bytes u64, artifact_id[16], JSON, zeros likewise
part, version 3           magic[8], part_index u64, artifact_id[16], zeros to 4096
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ninfer_jax.errors import ArtifactError

ENTRY_PREFIX = b"NINFER\0"
PART_PREFIX = b"NINPRT\0"
PAGE = 4096
HEADER_BYTES = {1: 16, 2: 16, 3: 32}
MAXIMUM_DIRECTORY_BYTES = 64 << 20


@dataclass(frozen=True)
class EntryHeader:
    """What the first bytes of an entry file say; `artifact_id` is None before version 3."""

    version: int
    json_bytes: int
    artifact_id: bytes | None

    @property
    def json_offset(self) -> int:
        return HEADER_BYTES[self.version]

    @property
    def payload_start(self) -> int:
        return payload_start(self.version, self.json_bytes)


def payload_start(version: int, json_bytes: int) -> int:
    """First payload byte of an entry file. Version 3, 690 bytes of JSON: 722 -> 4096."""
    return -(-(HEADER_BYTES[version] + json_bytes) // PAGE) * PAGE


def parse_entry_header(head: bytes, file_bytes: int, where: str) -> EntryHeader:
    """Return the header in `head`, the first 32 bytes of the file or all of a shorter one.

    Raises `ArtifactError` for a foreign file, another version, a continuation file, a truncated
    header, and a directory that does not fit the file.
    """
    if len(head) < 16:
        raise ArtifactError(f"{where}: truncated header, the file has {file_bytes} bytes")
    prefix, version = head[:7], head[7]
    if prefix == PART_PREFIX and version == 3:
        raise ArtifactError(f"{where}: a continuation file; open the entry file instead")
    if prefix not in (ENTRY_PREFIX, PART_PREFIX):
        raise ArtifactError(f"{where}: not a .ninfer file (first bytes {head[:8].hex(' ')})")
    if prefix == PART_PREFIX or version not in HEADER_BYTES:
        raise ArtifactError(f"{where}: unsupported container version {version}, expected 1, 2 or 3")
    if len(head) < HEADER_BYTES[version]:
        raise ArtifactError(
            f"{where}: truncated header, the file has {file_bytes} bytes, "
            f"expected at least {HEADER_BYTES[version]}"
        )
    (json_bytes,) = struct.unpack_from("<Q", head, 8)
    header = EntryHeader(version, json_bytes, head[16:32] if version == 3 else None)
    if json_bytes == 0:
        raise ArtifactError(f"{where}: the directory has 0 bytes")
    if json_bytes > file_bytes - header.json_offset:
        raise ArtifactError(
            f"{where}: a directory of {json_bytes} bytes does not fit a file of {file_bytes}"
        )
    if json_bytes > MAXIMUM_DIRECTORY_BYTES:
        raise ArtifactError(
            f"{where}: a directory of {json_bytes} bytes, at most {MAXIMUM_DIRECTORY_BYTES} "
            "is accepted"
        )
    if header.payload_start > file_bytes:
        raise ArtifactError(
            f"{where}: the payload starts at {header.payload_start}, "
            f"beyond the end of the file at {file_bytes}"
        )
    return header


def entry_header(version: int, json_bytes: int, artifact_id: bytes = b"") -> bytes:
    """Return the bytes of an entry header; version 3 needs an `artifact_id` of 16 bytes."""
    head = ENTRY_PREFIX + bytes([version]) + struct.pack("<Q", json_bytes) + artifact_id
    if len(head) != HEADER_BYTES[version]:
        raise ValueError(f"artifact_id has {len(artifact_id)} bytes")
    return head


def part_header(index: int, artifact_id: bytes) -> bytes:
    """Return the 32 header bytes of continuation file `index`; zeros follow up to 4096."""
    return PART_PREFIX + b"\3" + struct.pack("<Q", index) + artifact_id


def check_part_header(head: bytes, index: int, artifact_id: bytes, where: str) -> None:
    """Raise `ArtifactError` unless `head` begins part `index` of this artifact."""
    if len(head) < 32:
        raise ArtifactError(f"{where}: truncated header, the part has {len(head)} bytes")
    if head[:8] != PART_PREFIX + b"\3":
        raise ArtifactError(f"{where}: wrong magic {head[:8].hex(' ')}, expected a part file")
    (found,) = struct.unpack_from("<Q", head, 8)
    if found != index:
        raise ArtifactError(f"{where}: part index {found}, expected {index}")
    if head[16:32] != artifact_id:
        raise ArtifactError(
            f"{where}: belongs to artifact {head[16:32].hex()}, expected {artifact_id.hex()}"
        )
