"""A small artifact with every format and layout, made of random legal words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ninfer_jax.artifact import (
    Binding,
    Component,
    Part,
    TensorToWrite,
    Use,
    encode_direct,
    pack_object,
    write_artifact,
)
from ninfer_jax.checkpoint.to_artifact import encode

SHAPES = {
    "bf16": [(70,), (3, 5, 2), ()],
    "fp32": [(), (33,)],
    "int32": [(300,)],
    "fp8_e4m3fn_row_bf16": [(300, 70), (5, 3)],
    "nvfp4": [(384, 64), (128, 192)],
    "q4_g64_fp16": [(260, 64), (7, 130)],
    "q5_g64_fp16": [(260, 100), (130, 256)],
    "q6_g64_fp16": [(140, 200)],
    "q8_g32_fp16": [(300, 96), (1, 33)],
}


def payload(format: str, shape: tuple[int, ...], seed: int) -> bytes:
    """The stored bytes of random numbers in a format."""
    random = np.random.RandomState(seed)
    if format == "int32":
        values = random.randint(-1000, 1000, shape).astype(np.int32)
        return pack_object(format, encode_direct(format, values), shape)
    values = np.asarray(random.standard_normal(shape), np.float32).reshape(shape)
    return pack_object(format, encode(values, format), shape)


def write_every_format(path: Path, **changes) -> list[Path]:
    """Every shape of `SHAPES` as an object; matrices also by halves of their rows."""
    tensors, bindings = [], {}
    for format, shapes in SHAPES.items():
        for index, shape in enumerate(shapes):
            name = f"{format}/{index}"
            data = payload(format, shape, seed=len(tensors))
            tensors.append(TensorToWrite(f"weight {name}", format, shape, data))
            bindings[f"text/{name}"] = Binding(object=f"weight {name}")
            if len(shape) == 2 and shape[0] > 1:
                cut = shape[0] // 2 * shape[1]
                end = shape[0] * shape[1]
                bindings[f"text/{name}/low"] = Binding(parts=(Part(f"weight {name}", 0, cut),))
                bindings[f"text/{name}/high"] = Binding(parts=(Part(f"weight {name}", cut, end),))
    settings = {
        "components": {"text": Component({"a": 1}, resources={"x.json": "resource/ä.json"})},
        "tensors": tensors,
        "resources": {"resource/ä.json": b'{"b": "\xc3\xa4"}'},
        "bindings": bindings,
        "uses": [Use("text/nvfp4/0", "text/in", "AllowA4", {"d": Binding("weight fp32/0")})],
        "metadata": {"name": "every format"},
        "provenance": {"from": "a seed"},
    }
    return write_artifact(path, **(settings | changes))
