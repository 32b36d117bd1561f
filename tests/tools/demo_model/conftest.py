"""A checkpoint of the demo's sizes with random weights, made once."""

from pathlib import Path

import pytest

from tools.demo_model import export


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a training that never happened, whose folder `run` lies beside it."""
    folder = tmp_path_factory.mktemp("demo")
    run = folder / "run"
    run.mkdir()
    export.random_run(run)
    export.export(run, folder / "out")
    return folder / "out"
