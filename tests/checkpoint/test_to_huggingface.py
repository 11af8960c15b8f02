"""Export to a Hugging Face checkpoint: names, transforms, file format, from an artifact."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.artifact import open_artifact
from ninfer_jax.checkpoint.names import arrays_by_spec
from ninfer_jax.checkpoint.synthetic import synthetic_parameters
from ninfer_jax.checkpoint.to_artifact import write_decoder
from ninfer_jax.checkpoint.to_huggingface import (
    export_artifact,
    export_parameters,
    huggingface_config,
    huggingface_tensors,
    interleave_heads,
)
from ninfer_jax.model.config import text_config
from ninfer_jax.model.decoder import build_decoder
from tests.golden.cases import TINY

CONFIG = text_config(TINY, 500)


def read_safetensors(path) -> dict[str, np.ndarray]:
    """A reader that trusts nothing: offsets must tile the data."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    body, tensors, expected = data[8 + length :], {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == expected and entry["dtype"] == "F32"
        tensors[name] = np.frombuffer(body[begin:end], "<f4").reshape(entry["shape"])
        expected = end
    assert expected == len(body)
    return tensors


def test_worked_example_of_interleaving():
    query = np.arange(4.0)[:, None]
    gate = 10 + np.arange(4.0)[:, None]
    assert interleave_heads(query, gate, 2).ravel().tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


def test_transforms_are_those_of_the_conversion_table():
    """Each formula of the table from the checkpoint to the parameters, applied to the export."""
    parameters = synthetic_parameters(CONFIG, 1)
    tensors = huggingface_tensors(CONFIG, parameters)
    assert all(x.dtype == np.float32 and x.flags.c_contiguous for x in tensors.values())
    both = tensors["model.layers.3.self_attn.q_proj.weight"]
    assert both.shape == (2 * 6 * 32, 64)
    for head in range(6):
        rows = slice(head * 32, head * 32 + 32)
        np.testing.assert_array_equal(
            both[head * 64 : head * 64 + 32], parameters["text/layers/3/attention/query"][rows]
        )
        np.testing.assert_array_equal(
            both[head * 64 + 32 : head * 64 + 64], parameters["text/layers/3/attention/gate"][rows]
        )
    joined = tensors["model.layers.0.linear_attn.in_proj_qkv.weight"]
    for part, rows in (("query", (0, 32)), ("key", (32, 64)), ("value", (64, 160))):
        np.testing.assert_array_equal(joined[slice(*rows)], parameters[f"text/layers/0/gdn/{part}"])
    kernel = tensors["model.layers.0.linear_attn.conv1d.weight"]
    assert kernel.shape == (160, 1, 4)
    np.testing.assert_array_equal(
        np.transpose(kernel, (2, 0, 1))[..., 0], parameters["text/layers/0/gdn/convolution"]
    )
    same = {
        "model.norm.weight": "text/final_norm",
        "lm_head.weight": "text/output_head",
        "model.embed_tokens.weight": "text/token_embedding",
        "model.layers.0.linear_attn.A_log": "text/layers/0/gdn/a_log",
        "model.layers.0.linear_attn.in_proj_b.weight": "text/layers/0/gdn/b_projection",
        "model.layers.0.input_layernorm.weight": "text/layers/0/input_norm",
        "model.layers.7.self_attn.k_norm.weight": "text/layers/7/attention/key_norm",
    }
    for name, parameter in same.items():
        np.testing.assert_array_equal(tensors[name], parameters[parameter])


def test_every_number_is_exported_once():
    parameters = synthetic_parameters(CONFIG, 1)
    tensors = huggingface_tensors(CONFIG, parameters)
    assert sum(x.size for x in tensors.values()) == sum(x.size for x in parameters.values())
    assert len(tensors) == 3 + 2 * 11 + 6 * 14
    total = sum(float(np.abs(x, dtype=np.float64).sum()) for x in tensors.values())
    expected = sum(float(np.abs(x, dtype=np.float64).sum()) for x in parameters.values())
    assert total == pytest.approx(expected, rel=1e-12)


def test_config_names_what_transformers_needs():
    config = huggingface_config(TINY)
    assert config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    }
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["layer_types"] == TINY["layer_types"]
    assert "rope_type" not in TINY["rope_parameters"], "the component is left alone"


def test_files_can_be_read_back(tmp_path):
    parameters = synthetic_parameters(CONFIG, 1)
    export_parameters(TINY, CONFIG, parameters, tmp_path / "model")
    tensors = read_safetensors(tmp_path / "model" / "model.safetensors")
    expected = huggingface_tensors(CONFIG, parameters)
    assert list(tensors) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values)
    stored = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert stored == huggingface_config(TINY)


def test_an_artifact_is_exported_as_its_words_denote(tmp_path):
    """BF16 storage: every number of the export is the rounded original."""
    _, specs = build_decoder(CONFIG, np.dtype(np.float32))
    parameters = synthetic_parameters(CONFIG, 2)
    write_decoder(
        tmp_path / "tiny.ninfer",
        specs,
        arrays_by_spec(specs, parameters),
        config=TINY,
        resources={},
        storage_format=lambda name: "fp32" if name.endswith(("a_log", "dt_bias")) else "bf16",
        name="tiny",
        provenance={},
    )
    with open_artifact(tmp_path / "tiny.ninfer") as artifact:
        export_artifact(artifact, tmp_path / "model")
    tensors = read_safetensors(tmp_path / "model" / "model.safetensors")
    for name, values in huggingface_tensors(CONFIG, parameters).items():
        exact = name.endswith(("A_log", "dt_bias"))
        rounded = values if exact else values.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(tensors[name], rounded, err_msg=name)
