"""The house rules that can be executed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ninfer_jax"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_import_contracts_hold():
    """Floors, jax-free packages and oracles: `pyproject.toml`, [tool.importlinter]."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module",
    ["ninfer_jax.server.app", "ninfer_jax.text.output", "ninfer_jax.artifact", "ninfer_jax.config"],
)
def test_module_does_not_import_jax(module):
    """Parsing and HTTP code start in milliseconds and cannot touch the device."""
    done = run_python(
        f"import sys, {module}\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('jax', 'flax')))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_the_package_starts_no_backend():
    """Neither the package nor the modules of the device side touch a device on import."""
    done = run_python(
        "import ninfer_jax, sys\n"
        "assert 'jax' not in sys.modules\n"
        "import ninfer_jax.engine.build, ninfer_jax.serve, ninfer_jax.generate\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_every_public_name_has_a_docstring():
    """Modules, public classes and public functions say what they are."""
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.name != "__init__.py" and ast.get_docstring(tree) is None:
            missing.append(str(path.relative_to(ROOT)))
        for node in tree.body:
            if (
                isinstance(node, (ast.ClassDef, ast.FunctionDef))
                and not node.name.startswith("_")
                and ast.get_docstring(node) is None
            ):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)


def test_no_file_is_longer_than_400_lines():
    """A file that grows past 400 lines misses an idea."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long


def test_pallas_is_imported_in_its_own_folder_only():
    """One place to follow an API that moves."""
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if "jax.experimental.pallas" in path.read_text(encoding="utf-8")
        or "from jax.experimental import pallas" in path.read_text(encoding="utf-8")
    ]
    assert all(name.startswith("ninfer_jax/pallas/") for name in elsewhere)
