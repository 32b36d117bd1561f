"""Settings: arguments, environment, file, in that order, and never changed."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.sampler.config import SamplerSettings


def test_environment_wins_over_the_file_and_the_table_over_the_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared names are shared; a service's own table and variables are its own."""
    file = tmp_path / "mesh.toml"
    file.write_text(
        'checkpoint = "shared"\nregistry = "a:1"\ndevice = "cpu"\n'
        '[sampler]\ncheckpoint = "own"\nthreads = 3\n[encoder]\nthreads = 9\n'
    )
    monkeypatch.setenv("REELMESH_CONFIG", str(file))
    monkeypatch.setenv("REELMESH_SAMPLER_THREADS", "5")
    monkeypatch.setenv("REELMESH_HOME", str(tmp_path))
    settings = SamplerSettings()
    assert (settings.checkpoint, settings.registry, settings.device) == ("own", "a:1", "cpu")
    assert settings.threads == 5
    assert settings.folder == tmp_path / "sampler-1"
    assert SamplerSettings(threads=7).threads == 7


def test_settings_are_frozen_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that makes no sense is refused at the start, by name."""
    with pytest.raises(ValidationError):
        SamplerSettings().__setattr__("listen", "x")
    monkeypatch.setenv("REELMESH_SAMPLER_THREADS", "-1")
    with pytest.raises(ValidationError, match="threads"):
        SamplerSettings()
