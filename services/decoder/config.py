"""What a decoder is told."""

from typing import ClassVar

from pydantic_settings import SettingsConfigDict

from services.common.config import StageSettings


class DecoderSettings(StageSettings):
    """`REELMESH_DECODER_…`, or the table [decoder] of the file."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_DECODER_")
    table: ClassVar[str] = "decoder"

    instance_id: str = "decoder-1"
    listen: str = "127.0.0.1:7430"
