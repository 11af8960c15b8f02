"""One declared function; a question that needs it; its result turned into a sentence.

Function and parameter names vary, so that the model reads them from the declaration.
"""

from __future__ import annotations

import json
import random
from typing import Any

from ninfer_jax.demo.samples import Sample, Turn
from ninfer_jax.demo.words import CAPITALS, CITIES, ITEMS

SKIES = "sunny,rainy,cloudy,windy,snowy,foggy".split(",")
UNITS = "km,miles,kg,pounds,euros,dollars".split(",")

Case = tuple[str, dict[str, str], str, str, str, str]
"""Function name, arguments, description, question, tool result, sentence."""


def declaration(name: str, description: str, parameters: list[str]) -> dict[str, Any]:
    """An OpenAI-style function declaration with string parameters."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"} for parameter in parameters},
                "required": parameters,
            },
        },
    }


def _weather(rng: random.Random) -> Case:
    city, sky, degrees = rng.choice(CITIES), rng.choice(SKIES), rng.randrange(36)
    question = rng.choice(
        ("What is the weather in {}?", "How is the weather in {}?", "Is it raining in {}?")
    )
    return (
        rng.choice(("get_weather", "weather", "weather_now")),
        {rng.choice(("city", "place", "location")): city},
        "Weather in a city",
        question.format(city),
        json.dumps({"sky": sky, "degrees": degrees}),
        f"It is {sky} in {city} with {degrees} degrees.",
    )


def _time(rng: random.Random) -> Case:
    city, time = rng.choice(CITIES), f"{rng.randrange(24)}:{rng.randrange(60):02d}"
    question = rng.choice(("What time is it in {}?", "Tell me the time in {}."))
    return (
        rng.choice(("get_time", "clock", "local_time")),
        {rng.choice(("city", "place", "location")): city},
        "Time in a city",
        question.format(city),
        json.dumps({"time": time}),
        f"It is {time} in {city}.",
    )


def _price(rng: random.Random) -> Case:
    item, price = rng.choice(ITEMS), rng.randrange(1, 100)
    question = rng.choice(("How much is the {}?", "What does the {} cost?", "Price of the {}?"))
    return (
        rng.choice(("get_price", "price_of", "shop_price")),
        {rng.choice(("item", "product", "article")): item},
        "Price of an item",
        question.format(item),
        json.dumps({"price": price}),
        f"The {item} costs {price} dollars.",
    )


def _capital(rng: random.Random) -> Case:
    country = rng.choice(tuple(CAPITALS))
    capital = rng.choice(CITIES)
    question = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?"))
    return (
        rng.choice(("get_capital", "capital_of", "find_capital")),
        {rng.choice(("country", "state", "nation")): country},
        "Capital of a country",
        question.format(country),
        json.dumps({"capital": capital}),
        f"The capital of {country} is {capital}.",
    )


def _convert(rng: random.Random) -> Case:
    amount, result = rng.randrange(1, 1000), rng.randrange(1, 1000)
    source, target = rng.sample(UNITS, 2)
    question = rng.choice(("Convert {} {} to {}.", "How much are {} {} in {}?"))
    return (
        rng.choice(("convert", "convert_units", "exchange")),
        {"amount": str(amount), "source": source, "target": target},
        "Convert an amount",
        question.format(amount, source, target),
        json.dumps({"result": result}),
        f"{amount} {source} are {result} {target}.",
    )


CASES = (_weather, _time, _price, _capital, _convert)


def tool_use(rng: random.Random) -> Sample:
    """A call, or (two in five) the turn that follows with the result of the function."""
    name, arguments, description, question, result, sentence = rng.choice(CASES)(rng)
    calling = Turn(question, f"I call {name}.", "", call=(name, arguments))
    turns = (calling,)
    if rng.random() < 0.4:
        turns = (calling, Turn(result, "I have the result.", sentence, role="tool"))
    tools = (declaration(name, description, list(arguments)),)
    return Sample("tools", f"tools:{question}", turns, tools)
