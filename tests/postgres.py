"""A PostgreSQL server of the tests' own, in a temporary folder: Debian's package `postgresql`.

It refuses to run as root, so root starts it as the user `postgres`, whom the package makes.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

PACKAGE = "postgresql"
_USER = "postgres"
_LIMIT_S = 60.0
_NUMBERS = count(1)


def find_programs() -> Path | None:
    """The folder with initdb and postgres; None if the package is not installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: int(path.parent.parent.name),
    )
    if found:
        return found[-1].parent
    named = shutil.which("postgres")
    return Path(named).resolve().parent if named else None


@dataclass
class Server:
    """One server. `start` once; databases are cheap."""

    programs: Path
    durable: bool = False
    port: int = 0
    folder: Path = field(default_factory=Path)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make its folder and start it."""
        # Short: a unix socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.port = _free_port()
        if os.getuid() == 0:
            shutil.chown(self.folder, _USER)
        data = self.folder / "data"
        subprocess.run(
            [
                self.programs / "initdb",
                *("-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"),
                "--no-sync",
            ],
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            user=_user(),
        )
        self.resume()

    def resume(self) -> None:
        """Start it on the folder that it has."""
        safe = "on" if self.durable else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 100,
            "fsync": safe,
            "full_page_writes": safe,
            "shared_buffers": "64MB",
            "log_min_messages": "warning",
            "timezone": "Asia/Tokyo",
        }
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *arguments],
                cwd=self.folder,
                stderr=log,
                stdout=log,
                user=_user(),
            )
        limit = time.monotonic() + _LIMIT_S
        while True:
            try:
                psycopg.connect(self._dsn("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < limit, (self.folder / "log").read_text()
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all sessions, SIGQUIT is a crash. The folder stays."""
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(_LIMIT_S)
        self.process = None

    def remove(self) -> None:
        """Stop it and delete its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def create(self, template: str = "template0") -> str:
        """A fresh database, a copy of the template; its name."""
        name = f"test_{next(_NUMBERS)}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        """Delete a database, whoever is still connected."""
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def url(self, name: str) -> str:
        """The database's URL, as an operator writes it."""
        return f"postgresql://{_USER}:secret-word@127.0.0.1:{self.port}/{name}"

    def _dsn(self, name: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={name}"


def _user() -> str | None:
    return _USER if os.getuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
