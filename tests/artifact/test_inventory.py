"""The published 27B directories, sizes and counts, reproduced byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from types import MappingProxyType

import numpy as np
import pytest

from ninfer_jax.artifact.directory import Directory, ResourceObject, payload_end
from ninfer_jax.artifact.framing import PAGE, entry_header, payload_start
from ninfer_jax.artifact.inventory import (
    QWEN36_RESOURCES,
    QWEN38_RESOURCES,
    component_bytes,
    inventory,
    legacy_text,
    plan_legacy,
)
from ninfer_jax.artifact.legacy import upgrade_directory
from ninfer_jax.artifact.native import NATIVE_TEMPLATE_BYTES, native_directory, native_parents
from ninfer_jax.artifact.parameters import COMPONENTS, model_parameters
from ninfer_jax.artifact.parse import parse_directory
from ninfer_jax.artifact.reader import open_artifact
from ninfer_jax.artifact.requirements import check_configs
from ninfer_jax.artifact.writer import layout_files
from ninfer_jax.errors import ArtifactError

WITHOUT_DFLASH2 = ("text", "mtp", "vision", "proposal")
NATIVE_RESOURCES = MappingProxyType(
    QWEN38_RESOURCES | {"chat_template.jinja": NATIVE_TEMPLATE_BYTES}
)


def planned(profile, components=COMPONENTS, model_id="qwen3.8-27b", version=2):
    resources = QWEN36_RESOURCES if model_id == "qwen3.6-27b" else QWEN38_RESOURCES
    tensors = inventory(profile, components, model_id)
    return plan_legacy(tensors, resources, model_id, None if version == 1 else profile)


@pytest.mark.parametrize(
    ("version", "model_id", "profile", "components", "objects", "size", "digest", "file_bytes"),
    [
        (
            1, "qwen3.6-27b", "groupwise-int", WITHOUT_DFLASH2, 1124, 174_176,
            "df352a3e3b8555f15fd00d143be213b9e5ff6fb910a1c2390f0785f9a1e2d386", 17_495_365_888,
        ),
        (
            2, "qwen3.6-27b", "groupwise-int", WITHOUT_DFLASH2, 1124, 174_218,
            "0abb85fde318b5980c126f9c44a5bae09e852034de79ea269bd09693aa34e7f7", 17_495_365_888,
        ),
        (
            2, "qwen3.8-27b", "groupwise-int", WITHOUT_DFLASH2, 1124, 174_230,
            "45912dd83c71a1b3b3b644c15ce3ef83b0b60d77cd7c82a39b21d9ba6267d742", 18_210_531_328,
        ),
        (
            2, "qwen3.8-27b", "groupwise-int", COMPONENTS, 1190, 185_105,
            "8ac58027b96f58595730e86e0f1ddfa3f3d7cf726b43f91435b466b8032f8a60", 20_437_336_576,
        ),
        (
            2, "qwen3.8-27b", "nvfp4", WITHOUT_DFLASH2, 1124, 176_842,
            "dfb9a418f4a474c0b3709f48e1d4d1f878d54cdae726c042981b16f577875899", 21_492_695_040,
        ),
        (
            2, "qwen3.8-27b", "nvfp4", COMPONENTS, 1190, 187_717,
            "6b87d89f28937115d90542635126e72461750dcc9c1056620071014b35733d6e", 23_719_496_192,
        ),
    ],
)  # fmt: skip
def test_legacy_directories(
    version, model_id, profile, components, objects, size, digest, file_bytes
):
    directory = planned(profile, components, model_id, version=version)
    text = legacy_text(directory)
    assert len(directory.objects) == objects and len(text) == size
    assert hashlib.sha256(text).hexdigest() == digest
    assert payload_start(version, size) + payload_end(directory.objects) == file_bytes


NVFP4_OFFSETS = """
text/token_embedding 12837376 1271895040
text/layers/0/input_norm 1284732416 10240
text/layers/0/gdn/a_log 1284742656 192
text/layers/0/gdn/query_key_value_z 1285808128 83918848
text/layers/0/mlp/gate_up 1401204992 100270084
text/layers/0/mlp/gate_up_projection/input_scale_divisor 1501475328 4
text/layers/3/attention/query_key_gate_value 2085378816 73428992
text/layers/63/mlp/down 19027443200 89139200
text/output_head 19116592640 1271895040
text/draft_head 20388487680 356515840
text/draft_head_token_ids 20745003520 524288
mtp/input_projection 20745527808 55705600
vision/patch_embedding 21196795392 1382400
dflash2/feature_projection 21492514816 139264000
dflash2/candidate_selector/successor_codebook 23592167936 127139840
"""
GROUPWISE_OFFSETS = """
text/layers/0/gdn/query_key 1364773888
text/layers/0/gdn/value_z 1375915008
text/layers/3/attention/query_key 2045756160
text/output_head 15755467264
text/draft_head 17106328064
dflash2/feature_projection 18210355200
dflash2/candidate_selector/successor_codebook 20310008320
"""


@pytest.mark.parametrize(
    ("profile", "table"), [("nvfp4", NVFP4_OFFSETS), ("groupwise-int", GROUPWISE_OFFSETS)]
)
def test_offsets_in_the_version_2_payload(profile, table):
    objects = planned(profile).objects
    for line in table.split("\n")[1:-1]:
        name, *numbers = line.split()
        assert [objects[name].offset, objects[name].bytes][: len(numbers)] == list(
            map(int, numbers)
        )


def policies(directory: Directory) -> dict[str, int]:
    return dict(Counter(use.activation_policy for use in directory.uses))


def test_policies_and_divisors_of_uses():
    for components, fp8, plain in ((WITHOUT_DFLASH2, 346, 271), (COMPONENTS, 347, 329)):
        legacy = planned("nvfp4", components)
        directory = upgrade_directory(legacy, payload_end(legacy.objects))
        expected = {"AllowA4": 168, "AllowA8": fp8, "A16Only": plain}
        assert policies(directory) == expected
        with_divisor = [use for use in directory.uses if use.auxiliaries]
        assert len(with_divisor) == 168
        assert {use.activation_policy for use in with_divisor} == {"AllowA4"}
        shared = {use.auxiliaries["activation_input_divisor"].object for use in with_divisor}
        assert len(shared) == 112
        legacy = planned("groupwise-int", components)
        directory = upgrade_directory(legacy, payload_end(legacy.objects))
        assert policies(directory) == {"A16Only": fp8 + plain + 168}


def test_native_nvfp4_landmarks():
    directory = native_directory("nvfp4", NATIVE_RESOURCES)
    objects = directory.objects
    assert len(objects) == 1246 and directory.files[0].payload_bytes == 23_719_322_628
    assert sum(len(parent) > 1 for parent in native_parents("nvfp4")) == 242
    assert objects["weight/000000"].offset == 12_838_144
    assert objects["weight/000000"].shape == (16384, 5120)
    assert objects["weight/000001"].shape == (96, 5120)
    assert objects["weight/000002"].format == "nvfp4"
    assert objects["weight/000009"].shape == (14336, 5120)
    assert objects["weight/000242"].offset == 13_743_544_320
    assert directory.bindings["text/output_head"].object == "weight/000243"
    assert directory.bindings["mtp/input_projection"].object == "weight/000725"
    assert directory.bindings["proposal/head"].object == "weight/001070"
    assert objects["weight/001071"].offset == 23_718_755_584
    assert objects["auxiliary/000000"].offset == 23_719_279_872
    assert sum(id.startswith("auxiliary/") for id in objects) == 168
    divisors = [use.parameter for use in directory.uses if use.auxiliaries][:4]
    assert [name.replace("text/layers/", "") for name in divisors] == [
        "0/mlp/gate", "0/mlp/up", "0/mlp/down", "1/mlp/gate",
    ]  # fmt: skip


def test_native_groupwise_landmarks():
    directory = native_directory("groupwise-int", NATIVE_RESOURCES)
    assert len(directory.objects) == 1190
    assert sum(len(parent) > 1 for parent in native_parents("groupwise-int")) == 258
    assert directory.files[0].payload_bytes == 20_437_148_928
    assert directory.bindings["text/token_embedding"].object == "weight/000258"
    assert directory.bindings["proposal/token_ids"].object == "weight/001183"


def test_context_projections_share_the_rows_of_key_and_value():
    bindings = native_directory("nvfp4", NATIVE_RESOURCES).bindings
    attention = "dflash2/layers/2/attention"
    assert bindings[f"{attention}/context_key"] == bindings[f"{attention}/key"]
    assert bindings[f"{attention}/context_value"] == bindings[f"{attention}/value"]


@pytest.mark.parametrize("profile", ["nvfp4", "groupwise-int"])
def test_native_directories_pass_the_readers_own_checks(profile):
    directory = native_directory(profile, NATIVE_RESOURCES)
    text, files = layout_files(directory, directory.files[0].payload_bytes, "x", 1 << 40)
    back = parse_directory(json.loads(text), "x")
    assert back == dataclasses.replace(directory, files=files)


@pytest.mark.parametrize(
    ("profile", "components", "expected"),
    [
        ("nvfp4", WITHOUT_DFLASH2, "534 208 1 55 54 1 7 112 146"),
        ("nvfp4", COMPONENTS, "579 208 1 55 54 1 28 112 146"),
        ("groupwise-int", WITHOUT_DFLASH2, "582 96 1 183 246 1 9 0 0"),
        ("groupwise-int", COMPONENTS, "627 96 1 183 246 1 30 0 0"),
    ],
)
def test_tensor_counts_by_format(profile, components, expected):
    counts = Counter(tensor.format.split("_")[0] for tensor in inventory(profile, components))
    order = ("bf16", "fp32", "int32", "q4", "q5", "q6", "q8", "nvfp4", "fp8")
    assert " ".join(str(counts[name]) for name in order) == expected


def test_bytes_by_component():
    common = {
        "proposal": 357_040_128,
        "mtp": 451_267_584,
        "vision": 295_711_648,
        "dflash2": 2_226_792_960,
    }
    assert component_bytes(inventory("nvfp4")) == {"text": 20_375_587_712} | common
    assert component_bytes(inventory("groupwise-int")) == {"text": 17_093_484_544} | common
    assert sum(component_bytes(inventory("nvfp4")).values()) == 23_706_400_032
    assert sum(component_bytes(inventory("groupwise-int")).values()) == 20_424_296_864
    qwen36 = inventory("groupwise-int", WITHOUT_DFLASH2, "qwen3.6-27b")
    assert sum(component_bytes(qwen36).values()) == 17_482_342_304


def test_tensors_and_parameters_by_component():
    counts = Counter(tensor.component for tensor in inventory("nvfp4"))
    assert counts == {"text": 771, "proposal": 2, "mtp": 12, "vision": 333, "dflash2": 66}
    counts = Counter(parameter.component for parameter in model_parameters())
    assert counts == {"text": 963, "proposal": 2, "mtp": 16, "vision": 441, "dflash2": 91}
    # context_key and context_value are shares of key and value, not elements of their own.
    elements = sum(
        math.prod(parameter.shape)
        for parameter in model_parameters()
        if parameter.component == "dflash2" and "/attention/context_" not in parameter.name
    )
    assert elements == 1_924_404_480


def write_sparse(path, legacy, size=None):
    """Write a 27B file whose payload is one hole."""
    text = legacy_text(legacy)
    start = payload_start(legacy.version, len(text))
    with open(path, "wb") as file:
        file.write(entry_header(legacy.version, len(text)) + text)
        file.truncate(start + payload_end(legacy.objects) if size is None else size)
    return start


@pytest.mark.parametrize("profile", ["nvfp4", "groupwise-int"])
def test_a_version_2_file_of_full_size_opens(tmp_path, profile):
    path = tmp_path / "sparse.ninfer"
    legacy = planned(profile)
    start = write_sparse(path, legacy)
    with open(path, "r+b") as file:
        file.seek(start + legacy.objects["text/layers/0/gdn/a_log"].offset)
        file.write(np.ones(48, "<f4").tobytes())
    with open_artifact(path) as artifact:
        assert (artifact.version, artifact.artifact_id, artifact.name) == (2, None, "qwen3.8-27b")
        assert list(artifact.components) == ["text", "vision", "mtp", "dflash2"]
        assert artifact.components["text"].proposal.rows == 131072
        check_configs(artifact, ("vision", "mtp", "dflash2"), 248077)
        assert artifact.provenance == {
            "upgraded_from": {"version": 2, "model_id": "qwen3.8-27b", "weights_id": profile}
        }
        for parameter in model_parameters():
            stored = artifact.parameter(parameter.name, parameter.shape)
            assert stored.shape == parameter.shape
        assert artifact.parameter("text/layers/0/gdn/a_log", (48,)).decode().tolist() == [1] * 48
        rows = artifact.parameter("vision/layers/3/attention/key", (1152, 1152)).words()
        assert rows["codes"].shape == (1152, 1152) and rows["scales"].shape == (1152, 18)


def test_a_version_1_file_is_qwen36_groupwise(tmp_path):
    path = tmp_path / "sparse.ninfer"
    write_sparse(path, planned("groupwise-int", WITHOUT_DFLASH2, "qwen3.6-27b", version=1))
    with open_artifact(path) as artifact:
        assert artifact.version == 1 and "dflash2" not in artifact.components
        assert artifact.parameter("text/token_embedding").format == "q6_g64_fp16"


def test_a_truncated_download_is_named(tmp_path):
    path = tmp_path / "sparse.ninfer"
    write_sparse(path, planned("nvfp4"), size=10 * PAGE * PAGE)
    with pytest.raises(ArtifactError, match="truncated file: object 'text/token_embedding' ends"):
        open_artifact(path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda o: o.pop("mtp/hidden_norm"), "parameter 'mtp/hidden_norm' is missing"),
        (
            lambda o: o.pop("dflash2/layers/4/mlp/down"),
            "parameter 'dflash2/layers/4/mlp/down' is missing",
        ),
        (
            lambda o: o.update(
                {"text/extra": dataclasses.replace(o["text/final_norm"], id="text/extra")}
            ),
            "unexpected object 'text/extra'",
        ),
        (
            lambda o: o.update(
                {
                    "text/layers/3/attention/query_key": dataclasses.replace(
                        o["text/layers/3/attention/query_key_gate_value"], shape=(7168, 5120)
                    )
                }
            ),
            "unexpected object 'text/layers/3/attention/query_key': its rows are stored twice",
        ),
        (
            lambda o: o.update(
                {"text/final_norm": dataclasses.replace(o["text/final_norm"], shape=(5119,))}
            ),
            r"object 'text/final_norm': shape \[5119\], expected \[5120\]",
        ),
        (
            lambda o: o.update(
                {
                    "text/layers/0/mlp/down_projection/input_scale_divisor": dataclasses.replace(
                        o["text/layers/0/mlp/down_projection/input_scale_divisor"], shape=(1,)
                    )
                }
            ),
            r"input_scale_divisor': fp32 \[1\], expected an fp32 scalar",
        ),
        (
            lambda o: o.update({"other/file": ResourceObject("other/file", 0, 1)}),
            "unexpected resource 'other/file'",
        ),
    ],
)
def test_what_an_upgrade_refuses(edit, message):
    legacy = planned("nvfp4")
    objects = dict(legacy.objects)
    edit(objects)
    with pytest.raises(ArtifactError, match=message):
        upgrade_directory(dataclasses.replace(legacy, objects=objects), 1 << 40)


@pytest.mark.parametrize(
    ("model_id", "weights_id", "version"),
    [("qwen3.8-27b", "int3", 2), ("qwen3.6-35b-a3b", "groupwise-int", 2), ("other", None, 1)],
)
def test_unknown_identities(model_id, weights_id, version):
    legacy = dataclasses.replace(
        planned("nvfp4"), model_id=model_id, weights_id=weights_id, version=version
    )
    found = model_id if weights_id is None else f"{model_id}/{weights_id}"
    with pytest.raises(ArtifactError, match=f"unknown identity '{found}', expected one of qwen3.8"):
        upgrade_directory(legacy, 1 << 40)
