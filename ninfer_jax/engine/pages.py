"""Accounting of the pages of the KV pool: who holds which, with reference counts.

A page is 64 token positions of all layers. This is host accounting only; it touches no array
and knows no request.
"""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_jax.engine.invariants import InvariantError

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` positions: ceil(tokens / 64).

    0 -> 0,  64 -> 1,  65 -> 2.
    """
    if tokens < 0:
        raise ValueError(f"a number of tokens is not negative, got {tokens}")
    return -(-tokens // PAGE_TOKENS)


class PageAllocator:
    """Hands out page numbers `0 .. total - 1` and takes them back.

    A page is free, or held by one or more owners. `allocate` gives its caller the only
    reference; `share` adds one, for a second reader of the same tokens; `release` drops one,
    and the last one frees the page. Freed pages are reused newest first.
    """

    def __init__(self, total_pages: int):
        if total_pages < 1:
            raise ValueError(f"a pool has at least one page, got {total_pages}")
        self._references = [0] * total_pages
        self._free = list(range(total_pages - 1, -1, -1))

    @property
    def total(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - self.free

    def references(self, page: int) -> int:
        """Owners of the page; more than one means that it must be copied before a write."""
        return self._references[page]

    def can_allocate(self, count: int) -> bool:
        return 0 <= count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages; may not fail after `can_allocate(count)`."""
        if not self.can_allocate(count):
            raise InvariantError(
                "pages are allocated only after can_allocate",
                f"{count} pages asked, {self.free} free",
            )
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds one owner to each page; the pages must be held."""
        for page in pages:
            self._require_held(page, "only a held page is shared")
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drops one owner of each page; the pages must be held."""
        for page in pages:
            self._require_held(page, "only a held page is released")
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def check(self) -> None:
        """Raises `InvariantError` unless every page is either free or held, and not both."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a page is free at most once", f"free list {self._free}")
        for page, references in enumerate(self._references):
            if references < 0:
                raise InvariantError(
                    "no page has a negative reference count", f"page {page}: {references}"
                )
            if (references == 0) != (page in free):
                raise InvariantError(
                    "a page is free exactly when nobody holds it",
                    f"page {page}: {references} references, free: {page in free}",
                )

    def _require_held(self, page: int, law: str) -> None:
        if not 0 <= page < len(self._references):
            raise InvariantError("page numbers lie in the pool", f"page {page} of {self.total}")
        if self._references[page] == 0:
            raise InvariantError(law, f"page {page} is free")
