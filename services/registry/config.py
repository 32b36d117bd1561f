"""Settings of the registry: `REELMESH_REGISTRY_*`, and the table `registry` of the config file."""

import hashlib
import socket
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.common.config import ServiceSettings
from services.registry.limits import Limits


class RegistrySettings(ServiceSettings):
    """What the registry is told. Everything that it keeps is below `folder` unless configured."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_REGISTRY_")
    table: ClassVar[str] = "registry"

    client_listen: str = "127.0.0.1:7400"
    mesh_listen: str = "127.0.0.1:7401"
    # host:port that stages reach the mesh listener by; empty: the one it listens on.
    advertise: str = ""
    # A SQLite file, or PostgreSQL (postgresql://user:password@host/name): then several registries
    # may share it, with one folder of artifacts.
    database_url: str = Field("", repr=False)
    # This registry's name among those that share a database; empty: its host and mesh address.
    replica: str = ""
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
    # Limits of an owner that has none of its own: jobs that hold a sampler, and jobs besides them
    # that are not sampled yet. -1: none.
    max_running: int = Field(1, ge=-1)
    max_waiting: int = Field(2, ge=-1)
    # Jobs that may wait for the samplers of a pool, for each that is not GONE; at least 2 may.
    # -1: no limit.
    waiting_per_sampler: float = Field(2.0, ge=-1)
    # What a refused client is told to wait while no time of a stage was measured.
    retry_s: float = Field(30.0, gt=0)
    # How long after a job's end its latents are kept and it can be resumed from them.
    latents_retention_s: float = Field(24 * 3600.0, ge=0)
    # Outputs that are copied from stages at the same time.
    copies_at_once: int = Field(2, ge=1)
    # How long a job's changes can be watched again; a live job's newest is kept anyway.
    event_retention_s: float = Field(7 * 24 * 3600.0, gt=0)
    stream_idle_s: float = Field(30.0, gt=0)
    upload_expiry_s: float = Field(3600.0, gt=0)
    stop_grace_s: float = Field(5.0, ge=0)

    @property
    def folder(self) -> Path:
        """The registry's own folder."""
        return self.home_folder / "registry"

    @property
    def limits(self) -> Limits:
        """What owners and pools may have."""
        return Limits(self.max_running, self.max_waiting, self.waiting_per_sampler, self.retry_s)

    @property
    def url(self) -> str:
        """The database: a SQLite file in `folder` unless configured."""
        return self.database_url or f"sqlite:///{self.folder / 'registry.db'}"

    @property
    def replica_id(self) -> str:
        """This registry among those on its database: the same at its next start."""
        name = self.replica or f"{socket.gethostname()} {self.mesh_listen} {self.folder}"
        return f"rep_{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def artifact_folder(self) -> Path:
        """The folder of artifacts, files named by their ids alone."""
        return (self.artifacts or self.folder / "artifacts").expanduser()

    @property
    def key_path(self) -> Path:
        """The file with the local owner's key."""
        return (self.key_file or self.home_folder / "client.json").expanduser()
