"""The `.ninfer` weight container: framing, formats, layouts, bindings, reading and writing.

numpy only; knows no model code. The names below are what other packages use.
"""

from ninfer_jax.artifact.bindings import StoredTensor
from ninfer_jax.artifact.codecs import (
    decode_fields,
    encoded_bytes,
    fuse_rows,
    pack_object,
    unpack_object,
)
from ninfer_jax.artifact.direct import encode_direct
from ninfer_jax.artifact.directory import (
    Binding,
    Component,
    FileEntry,
    Part,
    Proposal,
    ResourceObject,
    TensorObject,
    Use,
)
from ninfer_jax.artifact.fp8 import encode_fp8_rows
from ninfer_jax.artifact.grouped import encode_grouped
from ninfer_jax.artifact.nvfp4 import encode_nvfp4, nvfp4_divisor
from ninfer_jax.artifact.reader import Artifact, open_artifact
from ninfer_jax.artifact.writer import ResourceToWrite, TensorToWrite, write_artifact

__all__ = [
    "Artifact",
    "Binding",
    "Component",
    "FileEntry",
    "Part",
    "Proposal",
    "ResourceObject",
    "ResourceToWrite",
    "StoredTensor",
    "TensorObject",
    "TensorToWrite",
    "Use",
    "decode_fields",
    "encode_direct",
    "encode_fp8_rows",
    "encode_grouped",
    "encode_nvfp4",
    "encoded_bytes",
    "fuse_rows",
    "nvfp4_divisor",
    "open_artifact",
    "pack_object",
    "unpack_object",
    "write_artifact",
]
