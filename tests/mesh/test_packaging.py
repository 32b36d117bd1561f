"""What a registry's machine has to install."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_START_S = 3.0


@pytest.fixture(scope="module")
def registry_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with `pip install .[registry]`."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{ROOT}[registry]"], check=True, timeout=280)
    return folder


def test_registry_brings_no_torch(registry_venv: Path) -> None:
    """Neither torch nor anything of the model is installed or needed."""
    listed = subprocess.run(
        [str(registry_venv / "bin" / "pip"), "list", "--format", "freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.lower()
    for name in ("torch", "diffusers", "transformers", "safetensors", "xfuser", "av"):
        assert not any(line.split("==")[0] == name for line in listed.splitlines()), name


def test_registry_starts_there_in_under_three_seconds(registry_venv: Path, tmp_path: Path) -> None:
    """From process start to its line "serving", on an empty home, away from the repository."""
    env = {
        "PATH": os.environ["PATH"],
        "REELMESH_HOME": str(tmp_path / "home"),
        "REELMESH_REGISTRY_CLIENT_LISTEN": "127.0.0.1:0",
        "REELMESH_REGISTRY_MESH_LISTEN": "127.0.0.1:0",
    }
    took = []
    for _ in range(2):  # the first start compiles the bytecode
        began = time.monotonic()
        process = subprocess.Popen(
            [str(registry_venv / "bin" / "reelmesh"), "serve", "registry"],
            env=env,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if '"serving"' in line:
                took.append(time.monotonic() - began)
                break
        process.terminate()
        assert process.wait(20) == 0
    assert len(took) == 2
    assert min(took) < _START_S
