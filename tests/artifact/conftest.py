"""Miniature artifacts: the published test vectors, and a whole model in a few kilobytes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.artifact import (
    Binding,
    Component,
    Part,
    Proposal,
    TensorToWrite,
    Use,
    pack_object,
    write_artifact,
)
from ninfer_jax.artifact.framing import PAGE, entry_header, part_header
from ninfer_jax.artifact.parameters import model_parameters
from ninfer_jax.artifact.published_configs import (
    dflash2_config,
    mtp_config,
    text_config,
    vision_config,
)

OBJECTS = (
    '[{"name":"frontend/tokenizer.json","kind":"resource","encoding":"raw-bytes-v1","offset":0,'
    '"bytes":2},{"name":"direct/bf16","kind":"tensor","shape":[2],"format":"BF16",'
    '"layout":"contiguous-le-v1","offset":256,"bytes":4},{"name":"quant/q4","kind":"tensor",'
    '"shape":[1,65],"format":"Q4G64_F16S","layout":"row-split-k128-v1","offset":512,"bytes":260}]'
)
LEGACY_TEXT = {
    1: '{"model_id":"test-model","objects":' + OBJECTS + "}",
    2: '{"identity":{"model_id":"test-model","weights_id":"test-weights"},"objects":'
    + OBJECTS
    + "}",
}
V3_TEXT = (
    '{"components":{"text":{"config":{"architectures":["Qwen3_5ForCausalLM"]},"resources":'
    '{"tokenizer.json":"resource/text/tokenizer.json"}}},"objects":[{"id":'
    '"resource/text/tokenizer.json","kind":"resource","encoding":"raw_bytes_v1","offset":0,'
    '"bytes":2},{"id":"weight/000000","kind":"tensor","shape":[2048],"format":"bf16","layout":'
    '"contiguous_le_v1","offset":256,"bytes":4096}],"bindings":{"text/a":{"parts":[{"object":'
    '"weight/000000","range":[0,1024]}]},"text/b":{"parts":[{"object":"weight/000000","range":'
    '[1024,2048]}]}},"uses":[{"parameter":"text/b","input":"text/in","activation_policy":'
    '"A16Only"}],"files":[{"path":null,"payload_bytes":4352}],"metadata":{"name":"mini"},'
    '"provenance":{}}'
)
ARTIFACT_ID = bytes(range(16))


class Minis:
    """Builds miniature files below one folder; documents may be edited before they are written."""

    def __init__(self, folder: Path):
        self.folder = folder

    def document(self, version: int) -> dict:
        """Return a fresh, editable directory document of the published vector."""
        return json.loads(V3_TEXT if version == 3 else LEGACY_TEXT[version])

    def text(self, version: int) -> bytes:
        return (V3_TEXT if version == 3 else LEGACY_TEXT[version]).encode()

    def payload(self, version: int) -> bytes:
        if version == 3:
            return b"{}".ljust(256, b"\0") + np.arange(2048, dtype="<u2").tobytes()
        codes = np.zeros((1, 65), np.int8)
        codes[0, :6] = -8, -7, -1, 0, 1, 7
        scales = np.array([[0x3E00, 0x3400]], np.uint16)
        q4 = pack_object("q4_g64_fp16", {"codes": codes, "scales": scales}, (1, 65))
        return b"{}".ljust(256, b"\0") + b"\x80\x3f\x00\xc0".ljust(256, b"\0") + q4

    def entry(self, version: int, document: dict | bytes | None = None, payload=None) -> bytes:
        """Return the bytes of an entry file."""
        text = self.text(version) if document is None else document
        if isinstance(text, dict):
            text = json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()
        head = entry_header(version, len(text), ARTIFACT_ID if version == 3 else b"") + text
        start = -(-len(head) // PAGE) * PAGE
        return head.ljust(start, b"\0") + (self.payload(version) if payload is None else payload)

    def write(self, content: bytes, name: str = "mini.ninfer") -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def write_version(self, version: int, document: dict | bytes | None = None) -> Path:
        return self.write(self.entry(version, document))

    def write_split(self) -> tuple[Path, Path]:
        """Write version 3 split at payload byte 4096; returns the entry and the part."""
        document = self.document(3)
        document["files"] = [
            {"path": None, "payload_bytes": 4096},
            {"path": "mini.ninfer.part-0001", "payload_bytes": 256},
        ]
        payload = self.payload(3)
        part = part_header(1, ARTIFACT_ID).ljust(PAGE, b"\0") + payload[4096:]
        return (
            self.write(self.entry(3, document, payload[:4096])),
            self.write(part, "mini.ninfer.part-0001"),
        )

    def write_vector(self, path: Path, file_limit: int) -> list[Path]:
        """Write the version 3 vector with the writer itself."""
        return write_artifact(
            path,
            components={
                "text": Component(
                    {"architectures": ["Qwen3_5ForCausalLM"]},
                    resources={"tokenizer.json": "resource/text/tokenizer.json"},
                )
            },
            resources={"resource/text/tokenizer.json": b"{}"},
            tensors=[
                TensorToWrite(
                    "weight/000000",
                    "bf16",
                    (2048,),
                    lambda: np.arange(2048, dtype="<u2").tobytes(),
                )
            ],
            bindings={
                "text/a": Binding(parts=(Part("weight/000000", 0, 1024),)),
                "text/b": Binding(parts=(Part("weight/000000", 1024, 2048),)),
            },
            uses=[Use("text/b", "text/in", "A16Only")],
            metadata={"name": "mini"},
            provenance={},
            artifact_id=ARTIFACT_ID,
            file_limit=file_limit,
        )


@pytest.fixture
def minis(tmp_path: Path) -> Minis:
    return Minis(tmp_path)


class TinyModel:
    """A complete artifact whose every parameter is one BF16 number; edit, then `write()`."""

    def __init__(self, path: Path):
        self.path = path
        text = text_config() | {
            "num_hidden_layers": 4,
            "layer_types": text_config()["layer_types"][:4],
            "vocab_size": 16,
            "hidden_size": 64,
        }
        drafter = dflash2_config() | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
        drafter["dflash_config"] = drafter["dflash_config"] | {
            "target_layer_ids": [0, 3],
            "mask_token_id": 11,
            "selector_top_k": 4,
        }
        self.configs = {
            "text": text,
            "vision": vision_config() | {"depth": 1},
            "mtp": mtp_config(),
            "dflash2": drafter,
        }
        self.proposal: Proposal | None = Proposal("indexed", 4)
        tokens = [f"t{index}" for index in range(10)]
        tokenizer = {
            "model": {"vocab": {token: index for index, token in enumerate(tokens)}},
            "added_tokens": [{"id": 10, "content": "<end>"}],
        }
        decoder = {"10": {"content": "<end>"}, "11": {"content": "<mask>"}}
        patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
        self.resources: dict[tuple[str, str], bytes] = {
            ("text", "tokenizer.json"): json.dumps(tokenizer).encode(),
            ("text", "tokenizer_config.json"): json.dumps(
                {"added_tokens_decoder": decoder}
            ).encode(),
            ("text", "chat_template.jinja"): b"{{ messages }}",
            ("text", "generation_config.json"): b"{}",
            ("vision", "preprocessor_config.json"): json.dumps(patches).encode(),
            ("vision", "video_preprocessor_config.json"): json.dumps(patches).encode(),
        }
        one = np.array([0x3F80], "<u2").tobytes()
        self.tensors = {
            parameter.name: ("bf16", (1,), one)
            for parameter in model_parameters()
            if not parameter.name.startswith(("text/layers", "vision/layers", "dflash2/layers"))
            or int(parameter.name.split("/")[2]) < {"t": 4, "v": 1, "d": 1}[parameter.name[0]]
        }
        self.tensors["proposal/head"] = ("bf16", (4, 64), bytes(2 * 4 * 64))
        self.tensors["proposal/token_ids"] = (
            "int32",
            (4,),
            np.array([7, 0, 11, 3], "<i4").tobytes(),
        )
        self.tensors["divisor"] = ("fp32", (), np.float32(2.5).tobytes())
        self.divisor_role = "activation_input_divisor"

    def write(self) -> Path:
        components = {}
        for name, config in self.configs.items():
            roles = {role: f"{owner}/{role}" for owner, role in self.resources if owner == name}
            components[name] = Component(
                copy.deepcopy(config),
                None if name == "text" else "text",
                roles,
                self.proposal if name == "text" else None,
            )
        down = "text/layers/0/mlp/down"
        use = Use(
            down,
            "text/layers/0/mlp/product",
            "AllowA4",
            {self.divisor_role: Binding(object="divisor")} if self.divisor_role else {},
        )
        write_artifact(
            self.path,
            components=components,
            tensors=[TensorToWrite(name, *entry) for name, entry in self.tensors.items()],
            resources={
                f"{owner}/{role}": data
                for (owner, role), data in self.resources.items()
                if owner in components
            },
            bindings={name: Binding(object=name) for name in self.tensors if name != "divisor"},
            uses=[use] if down in self.tensors else [],
        )
        return self.path


@pytest.fixture
def tiny_model(tmp_path: Path) -> TinyModel:
    return TinyModel(tmp_path / "tiny.ninfer")
