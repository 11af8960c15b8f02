"""Key/value facts in the question, returned as JSON in the order given."""

from __future__ import annotations

import json
import random

from ninfer_jax.demo.samples import Sample, Turn
from ninfer_jax.demo.words import ANIMALS, CITIES, COLOURS, ITEMS, JOBS, NAMES

FORMS = ("Return JSON: {}.", "Give me JSON: {}.", "As JSON: {}.", "Write this as JSON: {}.")


def value(key: str, rng: random.Random) -> str | int:
    """A random value that fits a key."""
    match key:
        case "name" | "friend":
            return rng.choice(NAMES)
        case "city":
            return rng.choice(CITIES)
        case "color":
            return rng.choice(COLOURS)
        case "pet":
            return rng.choice(ANIMALS)
        case "item":
            return rng.choice(ITEMS)
        case "job":
            return rng.choice(JOBS)
        case _:
            return rng.randrange(1, rng.choice((10, 100, 100, 1000)))


KEYS = ("name", "friend", "city", "color", "pet", "item", "job", "age", "size", "price", "count")


def structured(rng: random.Random) -> Sample:
    """Two to four facts; keys are distinct."""
    keys = rng.sample(KEYS, rng.choice((2, 3, 3, 4)))
    facts = {key: value(key, rng) for key in keys}
    listed = ", ".join(f"{key} is {fact}" for key, fact in facts.items())
    answer = json.dumps(facts, ensure_ascii=False)
    turn = Turn(rng.choice(FORMS).format(listed), "Keys: " + ", ".join(keys), answer)
    return Sample("structured", f"structured:{answer}", (turn,))
