"""The plan for 27B checkpoints is the published native directory; shapes only, no data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ninfer_jax.artifact.native import native_directory
from ninfer_jax.artifact.parameters import COMPONENTS, config_parameters, model_parameters
from ninfer_jax.artifact.published_configs import (
    dflash2_config,
    mtp_config,
    text_config,
    vision_config,
)
from ninfer_jax.artifact.writer import TensorToWrite, _place
from ninfer_jax.checkpoint.from_huggingface.convert import components
from ninfer_jax.checkpoint.from_huggingface.inputs import open_inputs
from ninfer_jax.checkpoint.from_huggingface.plan import plan_objects
from ninfer_jax.checkpoint.from_huggingface.resources import resources_to_write
from tests.checkpoint.building import (
    dflash2_shapes,
    mtp_shapes,
    quantised_entries,
    text_shapes,
    vision_shapes,
    write_sparse,
)

PREFIX = "model.language_model."
TEXT = text_config() | {"mtp_num_hidden_layers": 1, "rms_norm_eps": 1e-6}
VISION = vision_config() | {"out_hidden_size": 5120, "in_channels": 3}
DFLASH2 = dflash2_config() | {"hidden_size": 5120, "vocab_size": 248320, "num_target_layers": 64}
PUBLIC_TOKENS = 248077


def plain(shapes):
    return ((name, "BF16", shape) for name, shape in shapes)


def bf16_entries():
    yield from plain(text_shapes(TEXT, PREFIX))
    yield from plain(mtp_shapes(TEXT))
    yield from plain(vision_shapes(VISION))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Sparse files of the three published checkpoints, resources and frequencies."""
    folder = tmp_path_factory.mktemp("published")
    vocabulary = {str(token): token for token in range(PUBLIC_TOKENS)}
    geometry = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    resources = {
        "tokenizer.json": json.dumps({"model": {"vocab": vocabulary}}).encode(),
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"x" * 9712,
        "generation_config.json": b"{}",
        "preprocessor_config.json": json.dumps(geometry).encode(),
        "video_preprocessor_config.json": json.dumps(geometry).encode(),
    }
    config = {"text_config": TEXT, "vision_config": VISION}
    paths = {
        "base": write_sparse(folder / "base", config, bf16_entries(), resources),
        "quantised": write_sparse(folder / "words", config, quantised_entries(TEXT, PREFIX)),
        "dflash2": write_sparse(folder / "drafter", DFLASH2, plain(dflash2_shapes(DFLASH2))),
        "frequencies": folder / "ranking.bin",
    }
    paths["frequencies"].write_bytes(np.arange(248320, dtype="<i8").tobytes())
    return paths, {name: len(data) for name, data in resources.items()}


@pytest.mark.parametrize("drafter", [True, False])
@pytest.mark.parametrize("profile", ["nvfp4", "groupwise-int"])
def test_the_plan_of_the_published_checkpoints_is_the_native_directory(published, profile, drafter):
    paths, sizes = published
    inputs = open_inputs(
        paths["quantised"] if profile == "nvfp4" else paths["base"],
        profile,
        paths["base"],
        paths["dflash2"] if drafter else None,
        paths["frequencies"],
    )
    plan = plan_objects(inputs.planned, profile)
    tensors = [TensorToWrite(p.id, p.format, p.shape, None) for p in plan.parents]
    tensors += [TensorToWrite(id, "fp32", (), None) for id in plan.divisors]
    objects, _ = _place(resources_to_write(inputs.resources), tensors)
    present = COMPONENTS if drafter else tuple(c for c in COMPONENTS if c != "dflash2")
    native = native_directory(profile, sizes, present)
    assert list(objects.items()) == list(native.objects.items())
    assert list(plan.bindings.items()) == list(native.bindings.items())
    assert plan.uses == native.uses
    assert list(components(inputs).items()) == list(native.components.items())


def test_the_published_checkpoints_have_the_known_numbers_of_tensors():
    assert sum(1 for _ in bf16_entries()) == 1199
    assert sum(1 for _ in dflash2_shapes(DFLASH2)) == 81
    words = list(quantised_entries(TEXT, PREFIX))
    assert sum(name.endswith("weight_packed") for name, _, _ in words) == 168
    fp8 = [name for name, dtype, _ in words if dtype == "F8_E4M3" and name.endswith(".weight")]
    assert len(fp8) == 233


def test_parameters_of_the_published_configs_are_those_of_the_27b():
    configs = {
        "text": text_config(),
        "mtp": mtp_config(),
        "vision": vision_config(),
        "dflash2": dflash2_config(),
    }
    assert config_parameters(configs, 131072) == model_parameters()
    del configs["dflash2"]
    assert config_parameters(configs, None) == model_parameters(("text", "mtp", "vision"))


def test_bf16_alone_gives_nvfp4_without_divisors_of_activations(published):
    """Same objects but for the auxiliary ones; nothing was calibrated, so 16 bits."""
    paths, sizes = published
    inputs = open_inputs(paths["base"], "nvfp4", None, None, None)
    plan = plan_objects(inputs.planned, "nvfp4")
    present = ("text", "mtp", "vision")
    native = native_directory("nvfp4", sizes, present)
    stored = {id: o for id, o in native.objects.items() if id.startswith("weight/")}
    assert [(p.id, p.format, p.shape) for p in plan.parents] == [
        (o.id, o.format, o.shape) for o in stored.values()
    ]
    assert plan.bindings == native.bindings and plan.divisors == {}
    for use, known in zip(plan.uses, native.uses, strict=True):
        expected = "A16Only" if known.auxiliaries else known.activation_policy
        assert (use.parameter, use.activation_policy, use.auxiliaries) == (
            known.parameter, expected, {},
        )  # fmt: skip
