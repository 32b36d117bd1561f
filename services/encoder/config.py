"""What an encoder is told."""

from typing import ClassVar

from pydantic_settings import SettingsConfigDict

from services.common.config import StageSettings


class EncoderSettings(StageSettings):
    """`REELMESH_ENCODER_…`, or the table [encoder] of the file."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_ENCODER_")
    table: ClassVar[str] = "encoder"

    instance_id: str = "encoder-1"
    listen: str = "127.0.0.1:7410"
