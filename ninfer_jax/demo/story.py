"""Short prose from a grammar with free choice of words: text of high entropy."""

from __future__ import annotations

import random

from ninfer_jax.demo.samples import Sample, Turn
from ninfer_jax.demo.words import ANIMALS, CITIES, COLOURS, ITEMS, NAMES

FORMS = ("Tell me a story about a {}.", "A story about a {}, please.", "Write about a {}.")
TIMES = "One day,At night,In spring,Long ago,One morning,In winter".split(",")
FEELINGS = "happy,sad,brave,tired,proud,calm,hungry,kind".split(",")
ACTIONS = "found,lost,hid,made,saw,took,gave away,dreamed of".split(",")
ENDS = (
    "They became good friends.",
    "Then it went home and slept.",
    "Nobody knew why.",
    "It was a good day.",
    "The end was happy.",
)


def tale(animal: str, rng: random.Random) -> str:
    """Three or four sentences about the animal."""
    sentences = [
        f"{rng.choice(TIMES)} a {rng.choice(COLOURS)} {animal} {rng.choice(ACTIONS)} "
        f"the {rng.choice(ITEMS)} in {rng.choice(CITIES)}.",
        f"The {animal} was {rng.choice(FEELINGS)}.",
        f"It met {rng.choice(NAMES)}, who {rng.choice(ACTIONS)} the {rng.choice(COLOURS)} "
        f"{rng.choice(ITEMS)}.",
    ]
    if rng.random() < 0.5:
        sentences.append(f"{rng.choice(NAMES)} was {rng.choice(FEELINGS)} too.")
    return " ".join([*sentences, rng.choice(ENDS)])


def story(rng: random.Random) -> Sample:
    """A story about a random animal."""
    animal = rng.choice(ANIMALS)
    text = tale(animal, rng)
    turn = Turn(rng.choice(FORMS).format(animal), f"A story about a {animal}.", text)
    return Sample("story", f"story:{text}", (turn,))
