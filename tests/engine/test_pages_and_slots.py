"""Accounts of pages and slots: laws over long random histories."""

from __future__ import annotations

import random

import pytest

from ninfer_jax.engine.invariants import InvariantError
from ninfer_jax.engine.pages import PageAllocator, pages_for
from ninfer_jax.engine.slots import StateSlots


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (334_000, 5219)])
def test_pages_for(tokens, pages):
    assert pages_for(tokens) == pages


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_keep_the_account(seed):
    """200,000 steps beside a plain dictionary of reference counts."""
    rng = random.Random(seed)
    allocator = PageAllocator(37)
    model: dict[int, int] = {}
    for step in range(200_000):
        action = rng.randrange(3)
        if action == 0:
            count = rng.randrange(6)
            assert allocator.can_allocate(count) == (count <= 37 - len(model))
            if allocator.can_allocate(count):
                pages = allocator.allocate(count)
                assert len(set(pages)) == count and not set(pages) & model.keys()
                model.update(dict.fromkeys(pages, 1))
        elif model:
            page = rng.choice(list(model))
            if action == 1 and model[page] < 4:
                allocator.share([page])
                model[page] += 1
            elif action == 2:
                allocator.release([page])
                model[page] -= 1
                if not model[page]:
                    del model[page]
        if step % 997 == 0:
            allocator.check()
            assert allocator.used == len(model) and allocator.free == 37 - len(model)
            assert all(allocator.references(page) == count for page, count in model.items())


def test_broken_uses_name_the_law():
    allocator = PageAllocator(2)
    (page,) = allocator.allocate(1)
    with pytest.raises(InvariantError, match="can_allocate"):
        allocator.allocate(2)
    allocator.release([page])
    with pytest.raises(InvariantError, match="only a held page is released"):
        allocator.release([page])
    with pytest.raises(InvariantError, match="only a held page is shared"):
        allocator.share([page])
    with pytest.raises(InvariantError, match="lie in the pool"):
        allocator.release([2])


def test_slots_are_held_by_one_owner():
    rng = random.Random(5)
    slots, held = StateSlots(8), set()
    for _ in range(100_000):
        if rng.random() < 0.5 and slots.can_allocate():
            slot = slots.allocate()
            assert slot not in held
            held.add(slot)
        elif held:
            slot = rng.choice(sorted(held))
            slots.release(slot)
            held.remove(slot)
        assert slots.used == len(held)
    slots.check()
    for slot in held:
        slots.release(slot)
    with pytest.raises(InvariantError, match="only a held slot"):
        slots.release(0)
