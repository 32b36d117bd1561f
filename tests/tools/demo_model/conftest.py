"""A checkpoint of the demo's sizes with random weights, made once."""

from pathlib import Path

import pytest

from tools.demo_model import export, shipping


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a training that never happened; packed, it comes back in small files."""
    folder = tmp_path_factory.mktemp("demo")
    run = folder / "run"
    run.mkdir()
    export.random_run(run)
    export.export(run, folder / "out")
    packed = shipping.pack(run, folder / "packed")
    assert len(packed) == 4
    assert all(path.stat().st_size < 16 * 2**20 for path in packed)
    return folder / "out"
