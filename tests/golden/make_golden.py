"""Makes the golden files with torch and transformers, or checks them.

    .venv-oracle/bin/python tests/golden/make_golden.py            write the files
    .venv-oracle/bin/python tests/golden/make_golden.py --check    compare, exit status 1 if other

Each file holds what `Qwen3_5ForCausalLM` in f32 with eager attention computes for one case of
`cases.py`: the logits of all positions, the residual stream behind the last layer, and the
mixer outputs of one layer of each kind. Weights are not stored: a formula gives them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2]))

from ninfer_jax.checkpoint.to_huggingface import export_parameters
from tests.golden.cases import CASES, FULL_LAYER, LINEAR_LAYER, Case

TOLERANCE = 5e-5
"""Between two runs of the oracle; other processors add in another order."""

MOST_BYTES = 200 * 1024


def load_oracle(case: Case) -> torch.nn.Module:
    """The case's model in transformers, loaded from an exported checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        export_parameters(case.component, case.config, case.parameters(), Path(folder))
        model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise SystemExit(f"{case.name}: the checkpoint does not fit the class: {problems}")
    return model.eval()


def oracle_outputs(case: Case) -> dict[str, np.ndarray]:
    """One forward pass, f32 arrays without the batch axis."""
    model = load_oracle(case)
    kept: dict[str, np.ndarray] = {}

    def keep(name: str):
        def hook(module, inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            kept[name] = tensor[0].numpy()

        return hook

    layers = model.model.layers
    layers[LINEAR_LAYER].linear_attn.register_forward_hook(keep("linear_mixer"))
    layers[FULL_LAYER].self_attn.register_forward_hook(keep("full_mixer"))
    layers[-1].register_forward_hook(keep("hidden"))
    with torch.inference_mode():
        output = model(
            input_ids=torch.from_numpy(case.ids()),
            position_ids=torch.from_numpy(case.positions()),
            use_cache=False,
        )
    return {"logits": output.logits[0].numpy(), **kept}


def write(case: Case, outputs: dict[str, np.ndarray]) -> str:
    """Stores the outputs; returns a line about it."""
    np.savez_compressed(case.path, **outputs)
    size = case.path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{case.path.name} has {size} bytes, at most {MOST_BYTES} are allowed")
    return f"{case.path.name}: written, {size} bytes"


def check(case: Case, outputs: dict[str, np.ndarray]) -> tuple[bool, str]:
    """Compares with the stored file; returns (equal within tolerance, a line about it)."""
    if not case.path.exists():
        return False, f"{case.path.name}: missing"
    stored = np.load(case.path)
    if sorted(stored.files) != sorted(outputs):
        return False, f"{case.path.name}: holds {stored.files}, expected {list(outputs)}"
    worst = {
        name: float(np.abs(stored[name] - values).max())
        if stored[name].shape == values.shape
        else np.inf
        for name, values in outputs.items()
    }
    listed = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    good = max(worst.values()) <= TOLERANCE
    return good, f"{case.path.name}: {'ok' if good else 'DIFFERENT'}, largest difference: {listed}"


def main() -> int:
    """Writes or checks every case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored files")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    good = True
    for case in CASES:
        outputs = oracle_outputs(case)
        if arguments.check:
            same, line = check(case, outputs)
            good &= same
        else:
            line = write(case, outputs)
        print(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
