"""Settings of the registry: `REELMESH_REGISTRY_*`, and the table `registry` of the config file."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.common.config import ServiceSettings


class RegistrySettings(ServiceSettings):
    """What the registry is told. Everything that it keeps is below `folder` unless configured."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_REGISTRY_")
    table: ClassVar[str] = "registry"

    client_listen: str = "127.0.0.1:7400"
    mesh_listen: str = "127.0.0.1:7401"
    database_url: str = ""
    # Artifacts and what is being uploaded; empty: the home's own.
    artifacts: Path | None = None
    # Where the local owner's key is written at the first start; empty: the home's own.
    key_file: Path | None = None
    bootstrap: bool = True

    heartbeat_s: float = Field(5.0, gt=0)
    lease_s: float = Field(20.0, gt=0)
    # Deadline of a unary call to a stage.
    call_timeout_s: float = Field(10.0, gt=0)
    # A run is asked about at least this often, whatever its watch says.
    ask_interval_s: float = Field(5.0, gt=0)
    bookmark_s: float = Field(15.0, gt=0, le=15.0)
    # An instance that refused a run is left alone for this long.
    refusal_backoff_s: float = Field(1.0, gt=0)
    # Encoded jobs that may wait for each sampler slot.
    encoded_ahead: int = Field(2, ge=1)
    latents_retention_s: float = Field(24 * 3600.0, ge=0)
    stream_idle_s: float = Field(30.0, gt=0)
    upload_expiry_s: float = Field(3600.0, gt=0)
    stop_grace_s: float = Field(5.0, ge=0)

    @property
    def folder(self) -> Path:
        """The registry's own folder."""
        return self.home_folder / "registry"

    @property
    def url(self) -> str:
        """The database: a SQLite file in `folder` unless configured."""
        return self.database_url or f"sqlite:///{self.folder / 'registry.db'}"

    @property
    def artifact_folder(self) -> Path:
        """The folder of artifacts, files named by their ids alone."""
        return (self.artifacts or self.folder / "artifacts").expanduser()

    @property
    def key_path(self) -> Path:
        """The file with the local owner's key."""
        return (self.key_file or self.home_folder / "client.json").expanduser()
