"""The command that looks into an artifact, and offline verification."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from ninfer_jax.artifact import (
    Binding,
    Component,
    TensorToWrite,
    open_artifact,
    pack_object,
    published,
    write_artifact,
)
from ninfer_jax.artifact.published import PublishedFile
from ninfer_jax.artifact.verify import verify_artifact
from ninfer_jax.inspect import main


def test_text_output(tiny_model, capsys):
    assert main([str(tiny_model.write()), "--verify"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "container   version 3, ",
        "component   dflash2 -> text",
        "  proposal: indexed, 4 rows",
        "objects     fp32                          1                  4 bytes",
        "uses        AllowA4                       1",
        "resource    text/generation_config.json ",
        "verified    no fault found",
    ):
        assert line in shown


def test_json_output(tiny_model, capsys):
    assert main([str(tiny_model.write()), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["container_version"] == 3 and len(facts["artifact_id"]) == 32
    assert facts["formats"]["fp32"] == {"objects": 1, "bytes": 4}
    assert facts["bindings"]["proposal"] == 2 and facts["uses"] == {"AllowA4": 1}
    assert facts["directory"]["components"]["mtp"]["config"] == {"architectures": ["Qwen3_5MTP"]}
    assert facts["size_bytes"] == tiny_model.path.stat().st_size


def test_bad_and_foreign_files(minis, capsys, tmp_path):
    assert main([str(tmp_path / "nothing")]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("nothing: cannot open")
    assert main([str(minis.write_version(2))]) == 0
    shown = capsys.readouterr().out
    assert "identity    test-model/test-weights: unknown" in shown
    assert "q4_g64_fp16 [1, 65] 260 bytes" in shown


def test_control_characters_of_a_file_are_not_printed(minis, capsys):
    document = minis.document(3)
    document["metadata"]["name"] = "\x1b[31mred"
    document["components"]["text\n2"] = {"config": {"\x07": "\x1b"}}
    main([str(minis.write_version(3, document))])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert "component   text\\n2" in shown


def test_34_and_35_verify_finds_illegal_words(tmp_path, capsys):
    shape = (128, 64)
    nvfp4 = {
        "codes": np.zeros((128, 32), np.uint8),
        "scales": np.full((128, 4), 0x38, np.uint8),
        "divisor": np.float32(2),
    }
    bad_scale = nvfp4["scales"].copy()
    bad_scale[77, 3] = 0x80
    fp8 = {"codes": np.full(shape, 0x7F, np.uint8), "scales": np.full(128, 0x3F80, np.uint16)}
    q8 = {"codes": np.ones(shape, np.int8), "scales": np.full((128, 2), 0xFC00, np.uint16)}
    objects = {
        "good": ("nvfp4", nvfp4),
        "scale": ("nvfp4", nvfp4 | {"scales": bad_scale}),
        "divisor": ("nvfp4", nvfp4 | {"divisor": np.float32(np.nan)}),
        "nan": ("fp8_e4m3fn_row_bf16", fp8),
        "group": ("q8_g32_fp16", q8),
    }
    path = tmp_path / "a.ninfer"
    write_artifact(
        path,
        components={"text": Component({})},
        tensors=[
            TensorToWrite(name, format, shape, pack_object(format, fields, shape))
            for name, (format, fields) in objects.items()
        ],
        resources={},
        bindings={name: Binding(object=name) for name in objects},
    )
    with open_artifact(path) as artifact:
        faults = list(verify_artifact(artifact))
    assert len(faults) == 4
    assert "object 'scale': row 77, block 3: scale byte 0x80 is negative or NaN" in faults
    assert any("divisor is nan, expected finite and above 0" in fault for fault in faults)
    assert any("object 'nan': row 0, column 0: NaN code (word 0x7f)" in fault for fault in faults)
    assert any("object 'group': row 0, column 0: group scale is neg" in fault for fault in faults)
    assert main([str(path), "--verify"]) == 1
    assert "fault       object 'nan'" in capsys.readouterr().out


def test_verify_opens_every_part(minis):
    entry, part = minis.write_split()
    part.write_bytes(part.read_bytes()[:-1])
    with open_artifact(entry) as artifact:
        assert list(verify_artifact(artifact)) == [
            "part file 'mini.ninfer.part-0001': truncated: 4351 bytes, expected 4352"
        ]


def test_sha256_of_a_foreign_file(tiny_model, capsys):
    path = tiny_model.write()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert main([str(path), "--sha256"]) == 0
    shown = capsys.readouterr()
    assert f"sha256      {digest}  tiny.ninfer\n" in shown.out
    assert "official    not one of the official artifacts known to this version\n" in shown.out
    assert shown.err == ""
    assert main([str(path), "--sha256", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sha256"] == {"tiny.ninfer": digest} and facts["official"] is None
    assert main([str(path), "--json"]) == 0
    assert "sha256" not in json.loads(capsys.readouterr().out)


def test_sha256_of_an_official_file(tiny_model, capsys, monkeypatch):
    path = tiny_model.write()
    content = path.read_bytes()
    known = PublishedFile(
        "Tiny", "groupwise-int", True, 3, "tiny.ninfer", len(content),
        hashlib.sha256(content).hexdigest(), 1, ("abc", "def"),
    )  # fmt: skip
    monkeypatch.setattr(published, "PUBLISHED", (known,))
    assert main([str(path)]) == 0
    hint = "size        that of Tiny groupwise-int + DFlash2, container version 3; --sha256 tells"
    assert hint in capsys.readouterr().out
    assert main([str(path), "--sha256"]) == 0
    name = "Tiny groupwise-int + DFlash2, container version 3"
    assert f"official    {name}, revision abc, def\n" in capsys.readouterr().out
    assert main([str(path), "--sha256", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["official"]["name"] == name and facts["same_size_as"] == [name]
    assert facts["official"]["revisions"] == ["abc", "def"]
    monkeypatch.setattr(published, "PUBLISHED", (dataclasses.replace(known, revisions=()),))
    assert main([str(path), "--sha256"]) == 0
    assert f"official    {name}, revision not known\n" in capsys.readouterr().out


def test_sha256_of_a_set_of_files(minis, capsys):
    files = minis.write_split()
    assert main([str(files[0]), "--sha256", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sha256"] == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    files[1].unlink()
    assert main([str(files[0]), "--sha256"]) == 1
    assert "part-0001: cannot be read: No such file" in capsys.readouterr().err


def test_unknown_identities_can_be_hashed_and_listed_as_json(minis, capsys):
    path = minis.write_version(2)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert main([str(path), "--sha256"]) == 0
    assert f"sha256      {digest}  mini.ninfer" in capsys.readouterr().out
    assert main([str(path), "--sha256", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["unknown_identity"] == ["test-model", "test-weights"]
    assert facts["sha256"] == {"mini.ninfer": digest}
    assert [stored["id"] for stored in facts["objects"]][-1] == "quant/q4"


def test_totals(tiny_model, capsys):
    main([str(tiny_model.write())])
    shown = capsys.readouterr().out
    with open_artifact(tiny_model.path) as artifact:
        assert f"objects     {'all':24} {len(artifact.objects):6}\n" in shown
    assert "uses        with an input divisor         1\n" in shown
    assert ", groupwise-int\n" in shown
