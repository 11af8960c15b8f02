"""Random weights from a seeded formula: regenerated wherever they are needed, never stored.

Every number depends on (seed, parameter name) only. The values hide no bug that an
initialisation of zeros and ones would hide: norms, decays and time steps are all different.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from ninfer_jax.checkpoint.names import parameter_shapes
from ninfer_jax.model.config import TextConfig


def synthetic_array(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One parameter, f32.

        norms        0.2 N(0, 1), plus 1 for the plain norm of Gated DeltaNet
        a_log        log U(0.2, 4.2)
        dt_bias      N(0, 1)
        convolution  0.4 N(0, 1)
        matrices     N(0, 1 / columns), the embedding N(0, 1)

    `RandomState`, because its streams are frozen for every version of NumPy.
    """
    random = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    last = name.rsplit("/", 1)[-1]
    if last == "a_log":
        values = np.log(random.uniform(0.2, 4.2, shape))
    elif last in ("dt_bias", "token_embedding"):
        values = random.standard_normal(shape)
    elif last == "convolution":
        values = 0.4 * random.standard_normal(shape)
    elif name.endswith("gdn/norm"):
        values = 1.0 + 0.2 * random.standard_normal(shape)
    elif len(shape) == 1:
        values = 0.2 * random.standard_normal(shape)
    else:
        values = random.standard_normal(shape) / math.sqrt(shape[-1])
    return values.astype(np.float32)


def synthetic_parameters(config: TextConfig, seed: int) -> dict[str, np.ndarray]:
    """All text parameters by name."""
    return {
        name: synthetic_array(name, shape, seed) for name, shape in parameter_shapes(config).items()
    }
