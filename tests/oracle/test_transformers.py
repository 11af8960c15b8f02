"""Live comparison with `Qwen3_5ForCausalLM` on torch CPU in f32."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from ninfer_jax.checkpoint.to_huggingface import export_artifact, huggingface_tensors
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.errors import NInferError
from ninfer_jax.model.delta_rule import chunked_delta_rule, recurrent_delta_rule
from tests.golden.cases import DEMO, FOLDER, TINY, Case
from tests.golden.make_golden import load_oracle
from tests.model.building import Driver, build_model
from tests.model.oracle import OracleDecoder
from tests.model.test_golden import LOGITS_TOLERANCE, run_whole

pytestmark = pytest.mark.oracle

FULL_FIRST = TINY | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}
WIDE_ROTARY = TINY | {
    "rope_parameters": TINY["rope_parameters"]
    | {"partial_rotary_factor": 1.0, "mrope_section": [6, 5, 5]},
    "linear_num_value_heads": 4,
    "num_attention_heads": 2,
}
CASES = [
    Case("tiny", TINY, seed=11, columns=70, separate_axes=False),
    Case("three axes", TINY, seed=12, columns=90, separate_axes=True),
    Case("other order", FULL_FIRST, seed=13, columns=130, separate_axes=True),
    Case("wide rotary", WIDE_ROTARY, seed=14, columns=66, separate_axes=True),
    Case("demo", DEMO, seed=15, columns=65, separate_axes=False),
]


@torch.inference_mode()
def whole_logits(model, case: Case) -> np.ndarray:
    output = model(
        input_ids=torch.from_numpy(case.ids()),
        position_ids=torch.from_numpy(case.positions()),
        use_cache=False,
    )
    return output.logits[0].numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_of_whole_sequences(case):
    theirs = whole_logits(load_oracle(case), case)
    ours = run_whole(build_model(case.config, case.parameters()), case)["logits"]
    tensors = huggingface_tensors(case.config, case.parameters())
    _, exact = OracleDecoder(case.component, tensors)(case.ids()[0], case.positions()[:, 0])
    pairs = {
        "ours-theirs": (ours, theirs),
        "ours-f64": (ours, exact),
        "theirs-f64": (theirs, exact),
    }
    worst = {name: float(np.abs(one - other).max()) for name, (one, other) in pairs.items()}
    print(case.name, {name: f"{value:.1e}" for name, value in worst.items()})
    assert worst["ours-f64"] <= LOGITS_TOLERANCE
    assert min(worst["ours-theirs"], worst["theirs-f64"]) <= LOGITS_TOLERANCE


@pytest.mark.parametrize("seed", range(3))
def test_token_by_token_with_cache(seed):
    """A prompt and then single tokens: their cache against our pages and slots."""
    case = dataclasses.replace(CASES[0], seed=20 + seed)
    model, tokens, prompt = load_oracle(case), case.ids()[0], 40
    theirs, cache = [], None
    with torch.inference_mode():
        for begin, end in [(0, prompt), *((at, at + 1) for at in range(prompt, case.columns))]:
            ids = torch.from_numpy(tokens[None, begin:end])
            output = model(input_ids=ids, cache=cache, use_cache=True)
            cache = output.cache
            theirs.append(output.logits[0].numpy())
    theirs = np.concatenate(theirs)
    driver = Driver(build_model(case.config, case.parameters()), pages=4, slots=2)
    pieces = [(prompt, 64)] + [(1, 1)] * (case.columns - prompt)
    ours = driver.feed(tokens, 1, np.array([3, 1]), pieces)
    print(f"seed {case.seed}: {np.abs(ours - theirs).max():.1e}")
    assert np.abs(ours - theirs).max() <= LOGITS_TOLERANCE
    assert np.abs(ours - whole_logits(model, case)).max() <= LOGITS_TOLERANCE


@pytest.mark.parametrize("columns", [1, 64, 100])
def test_delta_rule(columns):
    """Both forms against both of theirs; their state is [key, value]."""
    random = np.random.RandomState(columns)
    q, k, v = (random.randn(2, columns, 3, 16).astype(np.float32) for _ in range(3))
    g = -np.exp(random.uniform(-6, 2, (2, columns, 3))).astype(np.float32)
    beta = random.uniform(0, 1, (2, columns, 3)).astype(np.float32)
    inputs = [torch.from_numpy(x) for x in (q, k, v, g, beta)]
    settings = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    expected = [
        rule(*inputs, initial_state=None, **settings)
        for rule in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule)
    ]

    def normalize(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    for rule in (recurrent_delta_rule, chunked_delta_rule):
        state = np.zeros((2, 3, 16, 16), np.float32)
        out, state = rule(normalize(q) / 4, normalize(k), v, g, beta, state)
        for their_out, their_state in expected:
            np.testing.assert_allclose(out, their_out.numpy(), atol=5e-5)
            np.testing.assert_allclose(state, their_state.numpy().swapaxes(2, 3), atol=5e-5)


def test_the_golden_files_are_what_the_oracle_says():
    command = [sys.executable, str(FOLDER / "make_golden.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True)
    print(finished.stdout, finished.stderr)
    assert finished.returncode == 0


def test_the_demo_artifact_loads_in_transformers(tmp_path):
    """Exported, loaded by the class, and it answers with finite logits like ours."""
    from ninfer_jax.artifact import open_artifact

    try:
        path = find_artifact("demo")
    except NInferError:
        pytest.skip("no demo artifact in this checkout")
    with open_artifact(path) as artifact:
        export_artifact(artifact, tmp_path)
        component = artifact.components["text"].config
    model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    ids = np.arange(40)[None] % component["vocab_size"]
    with torch.inference_mode():
        assert torch.isfinite(model.eval()(input_ids=torch.from_numpy(ids)).logits).all()
