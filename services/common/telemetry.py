"""Logs: structlog to standard error, readable on a terminal and JSON elsewhere.

Ids of job, run and owner are bound at the edge of a call (rpc/interceptors.py); the instance is
bound here, once a process. What libraries log or warn takes the same way out. A key, a token or
payload bytes never reach a line.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_WORDS = ("token", "secret", "authorization", "password", "api_key")
_LINE_LIMIT = 4000  # characters of one value


def bind(**ids: str) -> None:
    """Put these ids on every line of this task; empty ones are left out."""
    structlog.contextvars.bind_contextvars(**{name: value for name, value in ids.items() if value})


def configure(service: str, instance_id: str, level: str = "info") -> None:
    """Set up logging for this process. `instance_id` stands on every line."""

    def identify(
        _logger: Any, _name: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("service", service)
        event.setdefault("instance_id", instance_id)
        return event

    steps: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        identify,
        _redact,
    ]
    tty = sys.stderr.isatty()
    ending: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if tty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=[*steps, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=steps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
    logging.captureWarnings(True)


def _redact(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in list(event.items()):
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "[hidden]"
        elif isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"[{len(value)} bytes]"
        elif isinstance(value, str) and len(value) > _LINE_LIMIT and key != "exception":
            event[key] = value[:_LINE_LIMIT] + "…"
    return event
