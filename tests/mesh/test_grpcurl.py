"""docs/grpcurl.md is true: its very commands, run by the real grpcurl binary."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import av
import pytest
from safetensors import safe_open

from tests.mesh.harness import Mesh

DOC = Path(__file__).parents[2] / "docs" / "grpcurl.md"


@pytest.fixture(scope="module")
def walked(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which all commands of the page ran, and what they printed."""
    folder = tmp_path_factory.mktemp("grpcurl")
    blocks = re.findall(r"```sh\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 8
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert shutil.which("grpcurl", path=path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=folder,
        env={**os.environ, "PATH": path, "MESH": str(mesh.home), "PORT": str(mesh.port)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout + done.stderr


def test_job_through_the_registry_gives_a_video(walked: tuple[Path, str]) -> None:
    """The file that was put together from a Download's JSON plays."""
    folder, _ = walked
    with av.open(str(folder / "kite.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 124


def test_stage_alone_gives_latents(walked: tuple[Path, str]) -> None:
    """A bundle written by hand was sampled from, and the latents have their shapes."""
    folder, _ = walked
    with safe_open(folder / "latents.safetensors", framework="np") as latents:
        assert latents.get_slice("latents").get_shape() == [1, 24, 37, 8, 8]
        assert latents.get_slice("audio_latents").get_shape() == [2, 32, 207]


def test_services_and_errors_are_told(walked: tuple[Path, str]) -> None:
    """Reflection lists the services; a bad request names its reason and field."""
    _, said = walked
    assert "reelmesh.v1.JobService" in said
    assert "SERVING" in said
    assert "FRAMES_OUT_OF_RANGE" in said or "InvalidArgument" in said
