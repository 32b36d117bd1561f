"""What a sampler is told."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.common.config import StageSettings


class SamplerSettings(StageSettings):
    """`REELMESH_SAMPLER_…`, or the table [sampler] of the file."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_SAMPLER_")
    table: ClassVar[str] = "sampler"

    instance_id: str = "sampler-1"
    listen: str = "127.0.0.1:7420"
    # How long a rank may take to load its weights before it counts as hung.
    load_limit_s: float = Field(1800.0, gt=0)
