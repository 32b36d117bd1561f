"""`python -m services.registry`: wiring. With `migrate` it only brings the database up to date."""

import asyncio
import gc
import signal
import sys

import structlog

from services.common.config import load_settings
from services.common.telemetry import configure
from services.registry.config import RegistrySettings
from services.registry.database import DatabaseHeld, FileLock
from services.registry.migration import SchemaMismatch, migrate
from services.registry.postgres import DatabaseAway
from services.registry.service import Registry

log = structlog.get_logger()

# The services' code for "cannot start like this": trying again does not help.
_EXIT_CONFIGURATION = 2
# The database may only be starting: whoever started us should try again.
_EXIT_DATABASE_AWAY = 1


async def serve(settings: RegistrySettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    registry = Registry(settings)
    await registry.start()
    # What was made until now lives as long as we do: looking through it again and again would stop
    # everything for tens of milliseconds each time.
    gc.collect()
    gc.freeze()
    log.info("serving", clients=registry.client_address, mesh=registry.mesh_address)
    await stopped.wait()
    await registry.stop()
    log.info("stopped")


def bring_up_to_date(settings: RegistrySettings) -> None:
    """Migrate the database, while no registry runs on it."""
    lock = FileLock(settings.url)
    lock.acquire()
    log.info("migrated", schema=migrate(settings.url))
    lock.release()


def main() -> int:
    """Run the registry or its migrations; the exit code."""
    settings = load_settings(RegistrySettings)
    configure("registry", "registry", settings.log_level)
    try:
        if sys.argv[1:] == ["migrate"]:
            bring_up_to_date(settings)
        else:
            asyncio.run(serve(settings))
    except DatabaseAway as error:
        log.error("cannot_start", error=str(error))
        return _EXIT_DATABASE_AWAY
    except (DatabaseHeld, SchemaMismatch, OSError) as error:
        log.error("cannot_start", error=str(error))
        return _EXIT_CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
