"""The official artifacts: size, SHA-256 and repository revisions of each published file.

One file name has been published with different contents; size and digest tell them apart.
Repositories are `neroued/<name>` on Hugging Face. A missing digest here proves nothing: newer files
exist, and every upgrade to version 3 draws an artifact id of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ninfer_jax.errors import ArtifactError

READ_BYTES = 8 << 20


@dataclass(frozen=True)
class PublishedFile:
    """One official file.

    Attributes:
      profile: `nvfp4` or `groupwise-int`; `has_dflash2` says whether DFlash2 is in it.
      container: version, 1 to 3.
      objects: number of stored objects, None where it is not known.
      revisions: repository revisions that carry this file; empty where none is known.
    """

    model: str
    profile: str
    has_dflash2: bool
    container: int
    file_name: str
    size: int
    sha256: str
    objects: int | None
    revisions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name for people: model, profile, draft component, container."""
        draft = " + DFlash2" if self.has_dflash2 else ""
        return f"{self.model} {self.profile}{draft}, container version {self.container}"


PUBLISHED = (
    PublishedFile(
        "Qwen3.8-27B", "nvfp4", True, 3, "qwen3_8_27b_nvfp4.ninfer", 23_719_715_844,
        "74d2c57145e6ff11d1d2faa79594477f9bc903a611af1fb20218189fbbb77d82", 1246,
        ("f0b43ad436b9fa8142c6ed6647c470a6fe409484",),
    ),
    PublishedFile(
        "Qwen3.8-27B", "groupwise-int", True, 3, "qwen3_8_27b.ninfer", 20_437_521_664,
        "81f924d440c27261d820c19a9f8d45794c5aee410f8a68bd358133fa8c0375da", 1190,
        ("1cbd84e7221e51186bd7f093a149912d2489625b",),
    ),
    PublishedFile(
        "Qwen3.8-27B", "nvfp4", True, 2, "qwen3_8_27b_nvfp4.ninfer", 23_719_496_192,
        "552c374c685dce302603b95fbe940fb04243c0cd44c083efc644ad3d980d462c", 1190,
        (
            "11dbbbbbc33db198afe2f02c9232c771ff7031be",
            "52907138a5d23a8f7f868ba7b773e721fd275405",
        ),
    ),
    PublishedFile(
        "Qwen3.8-27B", "groupwise-int", True, 2, "qwen3_8_27b.ninfer", 20_437_336_576,
        "0634abb07024221de141456cf04a42ab74b18bc38e1b781c6eb2e062a467eec3", 1190,
        ("dc370fb6295ae8b786e1af4f90d7142a16255c35",),
    ),
    PublishedFile(
        "Qwen3.8-27B", "nvfp4", False, 2, "qwen3_8_27b_nvfp4.ninfer", 21_492_695_040,
        "bb3360522a06e136e0367f5703414d26272b7285c8a6ab6194135c17dbd81b32", 1124,
        ("204e3d92c30d9d05f3300d2f52e443ad1edf6ddf",),
    ),
    PublishedFile(
        "Qwen3.8-27B", "groupwise-int", False, 2, "qwen3_8_27b.ninfer", 18_210_531_328,
        "eec39564993d6e9c7d5e383382a760f093465c9d163ec9a1bd6b80199514bf3e", 1124,
        ("18dfc887423fa5aabf3cb56fac41490e462b3fab",),
    ),
    PublishedFile(
        "Qwen3.6-27B", "groupwise-int", False, 1, "qwen3_6_27b.ninfer", 17_495_365_888,
        "74fac75f3a6b7ab7b52e08c36969c7a33a8ba23465910eccd72d195adb497127", 1124,
    ),
    PublishedFile(
        "Qwen3.6-27B", "groupwise-int", False, 2, "qwen3_6_27b.ninfer", 17_495_365_888,
        "7b51600ffd10632b9660f56085efdd9b751d79733ad32036a652234b64bebe7b", 1124,
    ),
    PublishedFile(
        "Qwen3.6-27B", "groupwise-int", False, 3, "qwen3_6_27b.ninfer", 17_495_538_688,
        "9b610a7d051e7c4dbf89adb604bd269d248b643c8f6c7ef75bdb871af92c6f6b", None,
        ("3e3d9a3951c452c1ca80bd7a2860c7f3bfc5a829",),
    ),
    PublishedFile(
        "Qwen3.6-27B", "nvfp4", False, 2, "qwen3_6_27b_nvfp4.ninfer", 18_324_064_000,
        "bce5f00d066c0f20f1317bf1fdcb458264cf95837c3b1f3fbec163694627893a", 1307,
    ),
    PublishedFile(
        "Qwen3.6-35B-A3B", "groupwise-int", False, 1, "qwen3_6_35b_a3b.ninfer", 22_783_246_080,
        "5194407dd6d3092b8c2f81ce41e014b50ca0d6f1ba4e5d8c1492b8652bfa267f", 940,
    ),
    PublishedFile(
        "Qwen3.6-35B-A3B", "groupwise-int", False, 2, "qwen3_6_35b_a3b.ninfer", 22_783_246_080,
        "1fb9ea0b5b8561e49d9604115ec89e5d9f2b6f6434e32c37c57fffd480a325d2", 940,
    ),
)  # fmt: skip


def identify(size: int, sha256: str) -> PublishedFile | None:
    """Return the official file of this size and digest (64 hex digits), or None."""
    for published in PUBLISHED:
        if (published.size, published.sha256) == (size, sha256.lower()):
            return published
    return None


def of_size(size: int) -> tuple[PublishedFile, ...]:
    """Return the official files of this size: a hint, not an identification."""
    return tuple(published for published in PUBLISHED if published.size == size)


def file_sha256(path: str | Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file as 64 hex digits; `progress` gets the size of every read.

    Raises `ArtifactError` when the file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                if progress is not None:
                    progress(count)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()
