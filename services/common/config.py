"""Settings: frozen, from the environment, and below that from one TOML file.

What all processes share is named `REELMESH_HOME`, `REELMESH_REGISTRY` and so on; what is a
service's own carries its name, as `REELMESH_SAMPLER_LISTEN`. The file is named by
`REELMESH_CONFIG`; its top level holds the shared settings and a table for each service holds its
own, in the same names in lower case.
"""

import os
import sys
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

DEFAULT_HOME = Path("~/.reelmesh")


S = TypeVar("S", bound="ServiceSettings")

# The services' exit code for "cannot start like this": trying again does not help.
EXIT_CONFIGURATION = 2


def load_settings(kind: type[S]) -> S:
    """A process's settings; ends it with a sentence and EXIT_CONFIGURATION if they are wrong.

    What a service writes from then on is for its user alone: prompts and tokens are in it.
    """
    os.umask(0o077)
    try:
        return kind()
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        print(f"wrong settings: {found}", file=sys.stderr)
    except (SettingsError, tomllib.TOMLDecodeError, OSError) as error:
        print(f"cannot read the settings: {error}", file=sys.stderr)
    sys.exit(EXIT_CONFIGURATION)


class ServiceSettings(BaseSettings):
    """What every process of the mesh is told."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)
    # The service's own table in the file; a subclass names it.
    table: ClassVar[str] = ""

    home: Path = Field(DEFAULT_HOME, validation_alias="REELMESH_HOME")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", validation_alias="REELMESH_LOG_LEVEL"
    )
    mesh_tokens: Path | None = Field(None, validation_alias="REELMESH_MESH_TOKENS")

    @property
    def home_folder(self) -> Path:
        """The folder of all that this mesh keeps, with ~ resolved."""
        return self.home.expanduser().resolve()

    @property
    def tokens_path(self) -> Path:
        """The file of mesh tokens: one of the home's unless configured."""
        return (self.mesh_tokens or self.home_folder / "mesh-tokens.json").expanduser()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then the file."""
        return (init_settings, env_settings, InitSettingsSource(settings_cls, cls._from_file()))

    @classmethod
    def _from_file(cls) -> dict[str, Any]:
        named = os.environ.get("REELMESH_CONFIG")
        if not named:
            return {}
        content = tomllib.loads(Path(named).expanduser().read_text(encoding="utf-8"))
        shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        own = content.get(cls.table, {})
        # An alias is what pydantic-settings looks fields up by, so speak its names.
        return {
            str(field.validation_alias or name): {**shared, **own}[name]
            for name, field in cls.model_fields.items()
            if name in shared or name in own
        }


class StageSettings(ServiceSettings):
    """What every stage is told besides."""

    # host:port of the registry's mesh listener, of several registries separated by commas; empty:
    # the stage works alone.
    registry: str = Field("", validation_alias="REELMESH_REGISTRY")
    # A folder or a hub id, loaded by the same code.
    checkpoint: str = Field("MiniMaxAI/MiniMax-H3", validation_alias="REELMESH_CHECKPOINT")
    # Limits that an operator may widen or narrow; 0: the checkpoint's own.
    max_frames: int = Field(0, validation_alias="REELMESH_MAX_FRAMES", ge=0)
    min_frames: int = Field(0, validation_alias="REELMESH_MIN_FRAMES", ge=0)

    # A service's own, with its prefix:
    instance_id: str = ""
    listen: str = ""
    # host:port that others reach this instance by; empty: the one it listens on.
    advertise: str = ""
    # Group of instances that jobs may name.
    pool: str = Field("default", pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    device: str = "auto"
    dtype: str = "auto"
    # torch threads; 0: torch's own choice. The outputs depend on it in their last bits.
    threads: int = Field(0, ge=0)
    # Other instances that bundles may be pulled from: name = "host:port".
    peers: dict[str, str] = Field(default_factory=dict)
    stream_idle_s: float = Field(30.0, gt=0)
    upload_expiry_s: float = Field(3600.0, gt=0)

    @property
    def folder(self) -> Path:
        """This instance's own folder: its journal, uploads and bundles."""
        return self.home_folder / self.instance_id
