"""Every transform of a conversion against its own formula, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_jax.artifact import (
    encode_fp8_rows,
    encode_grouped,
    encode_nvfp4,
    open_artifact,
)
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.artifact.verify import verify_artifact
from ninfer_jax.checkpoint.from_huggingface import convert_checkpoint
from ninfer_jax.checkpoint.safetensors import Safetensors
from tests.checkpoint.building import (
    TEXT,
    tiny_base,
    tiny_dflash2,
    tiny_frequencies,
    tiny_quantised,
)

P = "model.language_model."
LIMIT = 1 << 40
PUBLIC_TOKENS = 993  # of the tokenizer of the demo


def silent(name: str, count: int) -> None:
    pass


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {
        "base": tiny_base(folder / "Tiny-Base"),
        "quantised": tiny_quantised(folder / "quantised"),
        "dflash2": tiny_dflash2(folder / "dflash2"),
        "frequencies": tiny_frequencies(folder / "ranking.bin"),
    }


@pytest.fixture(scope="module")
def artifacts(sources, tmp_path_factory):
    """The three conversions: words imported, BF16 encoded as nvfp4, and as groupwise-int."""
    folder = tmp_path_factory.mktemp("artifacts")
    made = {}
    for name, source, profile in (
        ("imported", "quantised", "nvfp4"),
        ("encoded", "base", "nvfp4"),
        ("groupwise", "base", "groupwise-int"),
    ):
        files = convert_checkpoint(
            sources[source],
            folder / f"{name}.ninfer",
            profile=profile,
            base=sources["base"] if source == "quantised" else None,
            dflash2=sources["dflash2"],
            frequencies=sources["frequencies"],
            file_limit=LIMIT,
            progress=silent,
        )
        made[name] = open_artifact(files[0])
    yield made
    for artifact in made.values():
        artifact.close()


@pytest.fixture(scope="module")
def tensors(sources):
    return {name: Safetensors(sources[name]) for name in ("base", "quantised", "dflash2")}


def f32(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


NAMES = ("imported", "encoded", "groupwise")


@pytest.mark.parametrize("name", NAMES)
def test_artifacts_are_complete_and_legal(artifacts, name):
    artifact = artifacts[name]
    check_artifact(artifact, ("vision", "mtp", "dflash2", "proposal"))
    verify_artifact(artifact)
    assert artifact.components["text"].proposal.rows == PUBLIC_TOKENS
    assert artifact.metadata["name"] == ("quantised" if name == "imported" else "tiny-base")


@pytest.mark.parametrize("name", NAMES)
def test_plain_parameters_are_copied(artifacts, tensors, name):
    text = tensors["quantised" if name == "imported" else "base"]
    base, draft = tensors["base"], tensors["dflash2"]
    for parameter, words in {
        "text/final_norm": text.words(f"{P}norm.weight"),
        "text/layers/2/input_norm": text.words(f"{P}layers.2.input_layernorm.weight"),
        "text/layers/2/gdn/b_projection": text.words(f"{P}layers.2.linear_attn.in_proj_b.weight"),
        "text/layers/2/gdn/norm": text.words(f"{P}layers.2.linear_attn.norm.weight"),
        "text/layers/3/attention/key_norm": text.words(f"{P}layers.3.self_attn.k_norm.weight"),
        "mtp/embedding_norm": base.words("mtp.pre_fc_norm_embedding.weight"),
        "mtp/layers/0/attention/query_norm": base.words("mtp.layers.0.self_attn.q_norm.weight"),
        "vision/position_embedding": base.words("model.visual.pos_embed.weight"),
        "vision/merger/norm_bias": base.words("model.visual.merger.norm.bias"),
        "vision/layers/1/mlp/fc2_bias": base.words("model.visual.blocks.1.mlp.linear_fc2.bias"),
        "dflash2/context_norm": draft.words("hidden_norm.weight"),
        "dflash2/layers/1/mlp_conv/base_kernel": draft.words("layers.1.mlp_conv.base_kernel"),
        "dflash2/layers/0/attention_conv/kernel_projection": draft.words(
            "layers.0.attention_conv.kernel_projection.weight"
        ),
        "dflash2/candidate_selector/successor_codebook": draft.words(
            "candidate_selector.successor_codebook"
        ),
    }.items():
        stored = artifacts[name].parameter(parameter)
        assert stored.format == "bf16"
        np.testing.assert_array_equal(stored.words()["words"], words, err_msg=parameter)


@pytest.mark.parametrize("name", NAMES)
def test_convolution_is_tap_major_and_decays_are_widened(artifacts, tensors, name):
    text = tensors["quantised" if name == "imported" else "base"]
    base = f"{P}layers.1.linear_attn."
    source = text.words(f"{base}conv1d.weight")
    stored = artifacts[name].parameter("text/layers/1/gdn/convolution").words()["words"]
    taps, channels = stored.shape
    assert source.shape == (channels, 1, taps)
    assert all(
        stored[tap, channel] == source[channel, 0, tap]
        for tap in range(taps)
        for channel in range(channels)
    )
    for parameter, tensor in (("a_log", "A_log"), ("dt_bias", "dt_bias")):
        stored = artifacts[name].parameter(f"text/layers/1/gdn/{parameter}")
        assert stored.format == "fp32"
        np.testing.assert_array_equal(stored.decode(), f32(text.words(base + tensor)))


def interleaved(head: int, half: int) -> np.ndarray:
    """Rows of q_proj that are query (0) or gate (1), one after another."""
    return np.array(
        [row for row in range(8 * head) if row // head % 2 == half], dtype=np.intp
    )  # 4 heads


@pytest.mark.parametrize(("part", "half"), [("query", 0), ("gate", 1)])
def test_interleaved_rows_move_with_their_scales(artifacts, tensors, part, half):
    tensor = f"{P}layers.3.self_attn.q_proj"
    rows = interleaved(TEXT["head_dim"], half)
    words = tensors["quantised"]
    stored = artifacts["imported"].parameter(f"text/layers/3/attention/{part}")
    assert stored.format == "fp8_e4m3fn_row_bf16"
    fields = stored.words()
    np.testing.assert_array_equal(fields["codes"], words.words(f"{tensor}.weight")[rows])
    np.testing.assert_array_equal(fields["scales"], words.words(f"{tensor}.weight_scale")[rows, 0])
    values = f32(tensors["base"].words(f"{tensor}.weight")[rows])
    fields = artifacts["encoded"].parameter(f"text/layers/3/attention/{part}").words()
    codes, scales = encode_fp8_rows(values)
    np.testing.assert_array_equal(fields["codes"], codes)
    np.testing.assert_array_equal(fields["scales"], scales)
    stored = artifacts["groupwise"].parameter(f"text/layers/3/attention/{part}")
    assert stored.format == ("q4_g64_fp16" if part == "query" else "q5_g64_fp16")
    codes, scales = encode_grouped(values, stored.format)
    np.testing.assert_array_equal(stored.words()["codes"], codes)
    np.testing.assert_array_equal(stored.words()["scales"], scales)


@pytest.mark.parametrize(
    ("part", "begin", "end"), [("query", 0, 64), ("key", 64, 128), ("value", 128, 256)]
)
def test_joined_rows_of_gated_deltanet(artifacts, tensors, part, begin, end):
    tensor = f"{P}layers.0.linear_attn.in_proj_qkv"
    fields = artifacts["imported"].parameter(f"text/layers/0/gdn/{part}").words()
    words = tensors["quantised"]
    np.testing.assert_array_equal(fields["codes"], words.words(f"{tensor}.weight")[begin:end])
    np.testing.assert_array_equal(
        fields["scales"], words.words(f"{tensor}.weight_scale")[begin:end, 0]
    )
    stored = artifacts["groupwise"].parameter(f"text/layers/0/gdn/{part}")
    values = f32(tensors["base"].words(f"{tensor}.weight")[begin:end])
    np.testing.assert_array_equal(stored.words()["codes"], encode_grouped(values, stored.format)[0])


def test_nvfp4_words_are_verbatim_and_gate_and_up_share_a_parent(artifacts, tensors):
    artifact, words = artifacts["imported"], tensors["quantised"]
    for part in ("gate", "up", "down"):
        tensor = f"{P}layers.6.mlp.{part}_proj"
        stored = artifact.parameter(f"text/layers/6/mlp/{part}")
        fields = stored.words()
        np.testing.assert_array_equal(fields["codes"], words.words(f"{tensor}.weight_packed"))
        np.testing.assert_array_equal(fields["scales"], words.words(f"{tensor}.weight_scale"))
        assert fields["divisor"] == words.words(f"{tensor}.weight_global_scale")[0]
        place = "mlp/product" if part == "down" else "ffn_input"
        use = artifact.use(f"text/layers/6/mlp/{part}", f"text/layers/6/{place}")
        assert use.activation_policy == "AllowA4"
        divisor = artifact.auxiliary(use, "activation_input_divisor").decode()
        assert divisor == words.words(f"{tensor}.input_global_scale")[0]
    gate, up = (artifact.bindings[f"text/layers/6/mlp/{part}"] for part in ("gate", "up"))
    assert gate.parts[0].object == up.parts[0].object
    assert artifact.parameter("text/layers/7/mlp/gate").format == "fp8_e4m3fn_row_bf16"


def test_nvfp4_is_encoded_over_the_whole_parent(artifacts, tensors):
    base = f"{P}layers.2.mlp."
    joined = np.concatenate(
        [f32(tensors["base"].words(f"{base}{part}_proj.weight")) for part in ("gate", "up")]
    )
    codes, scales, divisor = encode_nvfp4(joined)
    for part, rows in (("gate", slice(0, 256)), ("up", slice(256, 512))):
        fields = artifacts["encoded"].parameter(f"text/layers/2/mlp/{part}").words()
        np.testing.assert_array_equal(fields["codes"], codes[rows])
        np.testing.assert_array_equal(fields["scales"], scales[rows])
        assert fields["divisor"] == divisor
        use = artifacts["encoded"].use(f"text/layers/2/mlp/{part}", "text/layers/2/ffn_input")
        assert (use.activation_policy, use.auxiliaries) == ("A16Only", {})


@pytest.mark.parametrize("name", NAMES)
def test_vision_thirds_and_patches(artifacts, tensors, name):
    artifact, base = artifacts[name], tensors["base"]
    qkv = base.words("model.visual.blocks.1.attn.qkv.weight")
    bias = base.words("model.visual.blocks.1.attn.qkv.bias")
    for index, part in enumerate(("query", "key", "value")):
        rows = slice(64 * index, 64 * index + 64)
        stored = artifact.parameter(f"vision/layers/1/attention/{part}")
        codes, scales = encode_grouped(f32(qkv[rows]), "q4_g64_fp16")
        np.testing.assert_array_equal(stored.words()["codes"], codes)
        np.testing.assert_array_equal(stored.words()["scales"], scales)
        stored = artifact.parameter(f"vision/layers/1/attention/{part}_bias")
        np.testing.assert_array_equal(stored.words()["words"], bias[rows])
    patches = f32(base.words("model.visual.patch_embed.proj.weight"))
    flat = np.empty((64, 3 * 2 * 4 * 4), np.float32)
    for c, t, y, x in np.ndindex(3, 2, 4, 4):
        flat[:, ((c * 2 + t) * 4 + y) * 4 + x] = patches[:, c, t, y, x]
    stored = artifact.parameter("vision/patch_embedding")
    assert stored.format == "q6_g64_fp16"
    np.testing.assert_array_equal(stored.words()["codes"], encode_grouped(flat, "q6_g64_fp16")[0])


@pytest.mark.parametrize("name", NAMES)
def test_drafters_are_eight_bit_integers(artifacts, tensors, name):
    artifact = artifacts[name]
    for parameter, checkpoint, tensor in (
        ("mtp/input_projection", "base", "mtp.fc.weight"),
        ("mtp/layers/0/mlp/down", "base", "mtp.layers.0.mlp.down_proj.weight"),
        ("dflash2/feature_projection", "dflash2", "fc.weight"),
        ("dflash2/layers/1/attention/query", "dflash2", "layers.1.self_attn.q_proj.weight"),
        ("dflash2/layers/1/attention/context_key", "dflash2", "layers.1.self_attn.k_proj.weight"),
    ):
        stored = artifact.parameter(parameter)
        assert stored.format == "q8_g32_fp16"
        codes, scales = encode_grouped(f32(tensors[checkpoint].words(tensor)), stored.format)
        np.testing.assert_array_equal(stored.words()["codes"], codes, err_msg=parameter)
        np.testing.assert_array_equal(stored.words()["scales"], scales)
    block = "dflash2/layers/0/attention"
    assert artifact.bindings[f"{block}/context_key"] == artifact.bindings[f"{block}/key"]


@pytest.mark.parametrize("name", NAMES)
def test_proposal_rows_are_those_of_the_bf16_head(artifacts, tensors, name):
    artifact = artifacts[name]
    token_ids = artifact.parameter("proposal/token_ids").decode()
    head = f32(tensors["base"].words("lm_head.weight"))
    codes, scales = encode_grouped(np.stack([head[token] for token in token_ids]), "q4_g64_fp16")
    fields = artifact.parameter("proposal/head").words()
    np.testing.assert_array_equal(fields["codes"], codes)
    np.testing.assert_array_equal(fields["scales"], scales)


def test_the_embedding_comes_from_the_base_and_the_head_from_the_words(artifacts, tensors):
    fields = artifacts["imported"].parameter("text/token_embedding").words()
    table = f32(tensors["base"].words(f"{P}embed_tokens.weight"))
    np.testing.assert_array_equal(fields["codes"], encode_fp8_rows(table)[0])
    fields = artifacts["imported"].parameter("text/output_head").words()
    np.testing.assert_array_equal(fields["codes"], tensors["quantised"].words("lm_head.weight"))


def test_row_blocks_change_nothing(artifacts, sources, tmp_path, monkeypatch):
    """Blocks of 128 rows, parts that split objects, a progress that adds up."""
    module = "ninfer_jax.checkpoint.from_huggingface.payload.ELEMENTS_PER_BLOCK"
    monkeypatch.setattr(module, 1)
    seen: list[tuple[str, int]] = []
    files = convert_checkpoint(
        sources["base"],
        tmp_path / "blocks.ninfer",
        profile="nvfp4",
        base=None,
        dflash2=sources["dflash2"],
        frequencies=sources["frequencies"],
        file_limit=600_000,
        progress=lambda name, count: seen.append((name, count)),
    )
    assert len(files) > 1
    with open_artifact(files[0]) as artifact:
        assert artifact.objects == artifacts["encoded"].objects
        for id in artifact.objects:
            assert artifact.object_words(id) == artifacts["encoded"].object_words(id), id
        total = sum(entry.payload_bytes for entry in artifact.files)
    assert sum(count for _, count in seen) == total
    assert {"text/token_embedding", "mtp/input_projection"} <= {name for name, _ in seen}
