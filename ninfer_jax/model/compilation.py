"""How programs of the model are compiled on a device."""

from __future__ import annotations

_BY_PLATFORM = {
    # By default XLA on CPU hands reductions and element-wise fusions above some size to a
    # library that adds in another order. Which ones depends on the number of rows, so a row of
    # a batch of 4 would have other bits than the same row alone. Only products stay there.
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
}


def compiler_options(platform: str) -> dict[str, str]:
    """Options for `jax.jit(..., compiler_options=...)` or `Lowered.compile`.

    With them, on CPU, a row's numbers do not depend on how many rows and columns a call has,
    as long as every product has at least 2 rows, attention heads are 64 wide or wider, and
    vectors over heads fill whole vector registers (16 floats of AVX-512): in the rest of one the
    compiler takes transcendental functions by other instructions.
    """
    return dict(_BY_PLATFORM.get(platform, {}))
