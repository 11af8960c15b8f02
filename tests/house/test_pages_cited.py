"""Documentation pages that docstrings cite exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_cited_pages_exist():
    """`docs/x.md` in code, tests or README names a page of the repository."""
    missing = set()
    for folder in ("ninfer_jax", "tests", "tools", "bench", "configs"):
        for path in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"docs/[a-z_]+\.md", path.read_text(encoding="utf-8")):
                if not (ROOT / page).exists() and page != "docs/x.md":
                    missing.add(f"{path.relative_to(ROOT)}: {page}")
    assert not missing, "\n".join(sorted(missing))
