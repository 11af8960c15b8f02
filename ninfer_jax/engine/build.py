"""From a configuration and an artifact to a running engine."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from ninfer_jax.artifact import Artifact
from ninfer_jax.artifact.requirements import check_artifact
from ninfer_jax.checkpoint.from_artifact import Placement, load_weights
from ninfer_jax.checkpoint.open import open_weights
from ninfer_jax.config import ServeConfig
from ninfer_jax.config.checks import find_artifact
from ninfer_jax.engine.build_drafter import build_drafter, wanted_features
from ninfer_jax.engine.drafters import Drafter
from ninfer_jax.engine.engine import Engine
from ninfer_jax.engine.pages import PAGE_TOKENS
from ninfer_jax.engine.programs import (
    DevicePrograms,
    ProgramShape,
    lane_buckets,
    prefill_buckets,
)
from ninfer_jax.engine.request import EngineInfo
from ninfer_jax.engine.rounds import ProgramModel, ProgramWeights
from ninfer_jax.errors import ConfigError
from ninfer_jax.model.config import TextConfig, text_config
from ninfer_jax.model.decoder import build_decoder
from ninfer_jax.pallas.packed_matmul.reference import MINIMUM_ROWS
from ninfer_jax.quantization.kv import CODECS
from ninfer_jax.text.template import ChatTemplate
from ninfer_jax.text.tokenizer import Tokenizer

ROUNDS_PER_DISPATCH = 32
"""Most decode rounds of one dispatch, reached when nobody waits for a lane and rounds are short."""


@dataclasses.dataclass(frozen=True)
class BuiltEngine:
    """A running engine with the front end of its artifact.

    `programs` belong to the engine's thread; benchmarks read their compiled text.
    """

    engine: Engine
    programs: DevicePrograms
    tokenizer: Tokenizer
    template: ChatTemplate
    info: EngineInfo


def use_compilation_cache() -> None:
    """Keeps compiled programs between starts, unless the environment already says where."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(home / "ninfer_jax" / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def find_device(index: int) -> jax.Device:
    """The accelerator with this index, or the CPU where there is no accelerator."""
    devices = jax.local_devices()
    if index >= len(devices):
        raise ConfigError(f"--device {index}: this machine has {len(devices)} device(s)")
    return devices[index]


def read_front_end(artifact: Artifact, template_file: str | None) -> tuple[Tokenizer, ChatTemplate]:
    """Tokenizer and chat template of the artifact; a template file replaces the latter."""
    tokenizer = Tokenizer.from_resources(
        artifact.resource("text", "tokenizer.json"),
        artifact.resource("text", "tokenizer_config.json"),
    )
    if template_file is None:
        source = artifact.resource("text", "chat_template.jinja").decode("utf-8")
    else:
        try:
            source = Path(template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {template_file}: {error}") from error
    return tokenizer, ChatTemplate(source)


def kv_pages(config: ServeConfig) -> int:
    """Pages of the KV pool.

    Raises:
      ConfigError: `auto`, which needs the memory plan.
    """
    if config.kv_pages is None:
        raise ConfigError("--kv-capacity auto is not available in this version; give a number")
    return config.kv_pages


def smallest_bucket(device: jax.Device, drafter: Drafter | None) -> int:
    """Rows of the smallest decode program.

    On CPU a product of one row rounds differently from all others, so what runs one column a
    row has two rows at least; a block of DFlash2 and its verification have columns enough.
    """
    single_columns = drafter is None or drafter.name == "mtp"
    return MINIMUM_ROWS if device.platform == "cpu" and single_columns else 1


def build_programs(
    config: ServeConfig,
    artifact: Artifact,
    text: TextConfig,
    device: jax.Device,
    log: Callable[[str], None],
) -> DevicePrograms:
    """Loads the weights and compiles every program that serving can need."""
    dtype = jnp.dtype(jnp.bfloat16)
    placement: Placement = "dense" if device.platform == "cpu" else "packed"
    graph, specs = build_decoder(text, dtype)
    started = time.monotonic()
    sharding = jax.sharding.SingleDeviceSharding(device)
    drafter, drafter_weights = build_drafter(config, artifact, text, dtype, placement, sharding)
    decoder_weights = load_weights(artifact, specs, dtype, placement, sharding)
    weights = ProgramWeights(decoder_weights, drafter_weights)
    loaded = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    log(f"weights | {loaded / 2**20:.1f} MiB {placement} | {time.monotonic() - started:.1f}s")
    shape = ProgramShape(
        pages=kv_pages(config),
        slots=config.max_concurrency,
        max_context=config.max_context,
        lane_buckets=lane_buckets(config.max_concurrency, smallest_bucket(device, drafter)),
        prefill_buckets=prefill_buckets(config.prefill_chunk_tokens),
        rounds_per_dispatch=ROUNDS_PER_DISPATCH,
    )
    model = ProgramModel(graph, CODECS[config.kv_dtype], drafter)
    programs = DevicePrograms(text, model, weights, shape, dtype, device)
    programs.compile(log)
    return programs


def build_engine(config: ServeConfig, *, log: Callable[[str], None]) -> BuiltEngine:
    """Opens the artifact, loads, compiles and starts the engine's thread.

    Raises:
      ArtifactError: the file is malformed or lacks a part.
      ConfigError: the settings do not fit the model or the machine.
    """
    use_compilation_cache()
    device = find_device(config.device)
    sharding = jax.sharding.SingleDeviceSharding(device)
    artifact = open_weights(find_artifact(config.model), sharding)
    addressable = check_artifact(artifact, wanted_features(config, artifact))
    tokenizer, template = read_front_end(artifact, config.chat_template)
    text = text_config(artifact.components["text"].config, addressable)
    if config.max_context > text.max_position_embeddings:
        raise ConfigError(
            f"--max-context {config.max_context} is beyond the model's "
            f"{text.max_position_embeddings} positions"
        )
    name = artifact.name or "qwen3_5"
    log(f"artifact | {name} | container v{artifact.version} | {artifact.size_bytes:,} bytes")
    programs = build_programs(config, artifact, text, device, log)
    info = EngineInfo(
        model_name=name,
        architecture="qwen3_5",
        max_context=config.max_context,
        max_concurrency=config.max_concurrency,
        kv_dtype=config.kv_dtype,
        kv_capacity_tokens=kv_pages(config) * PAGE_TOKENS,
        device=f"{device.platform}:{device.id} {device.device_kind}",
        spec=programs.drafting.backend,
        draft_tokens=programs.drafting.draft_tokens,
        details={"jax": jax.__version__, "implementation": "reference"},
    )
    engine = Engine(info, programs, rounds_per_dispatch=ROUNDS_PER_DISPATCH)
    return BuiltEngine(engine, programs, tokenizer, template, info)
