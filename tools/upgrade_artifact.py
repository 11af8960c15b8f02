"""Rewrites an artifact of container version 1, 2 or 3 as version 3, every word as it was.

python -m tools.upgrade_artifact OLD.ninfer NEW.ninfer [--file-limit BYTES]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from ninfer_jax.artifact.reader import open_artifact
from ninfer_jax.artifact.upgrade import compare_words, upgrade_artifact
from ninfer_jax.artifact.writer import DEFAULT_FILE_LIMIT
from ninfer_jax.errors import ArtifactError


def main(arguments: list[str] | None = None) -> int:
    """Rewrites the artifact named on the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--file-limit", type=int, default=DEFAULT_FILE_LIMIT, help="bytes a file")
    parser.add_argument("--chat-template", type=Path, help="file that replaces the chat template")
    parser.add_argument("--compare", action="store_true", help="read both and name differences")
    options = parser.parse_args(arguments)
    try:
        template = options.chat_template and options.chat_template.read_bytes()
        with tqdm(unit="B", unit_scale=True, disable=None) as bar:
            files = upgrade_artifact(
                options.source,
                options.destination,
                file_limit=options.file_limit,
                chat_template=template,
                progress=bar.update,
            )
        for file in files:
            print(f"{file}  {file.stat().st_size:,} bytes")
        if not options.compare:
            return 0
        with open_artifact(options.source) as old, open_artifact(options.destination) as new:
            differences = list(compare_words(old, new))
        print("\n".join(differences) or "compared: every object has the same words")
        return 1 if differences else 0
    except (ArtifactError, OSError) as error:
        print(getattr(error, "message", error), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
