"""A TCP proxy that loses what passes through it, when it is told to."""

import asyncio
from contextlib import suppress


class Proxy:
    """In front of one port. `start` first."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mute = False
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End every connection in the middle of whatever it carries."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def lose_answers(self, seconds: float) -> None:
        """Questions arrive, and what is answered is lost; then every connection ends."""
        self._mute = True
        await asyncio.sleep(seconds)
        self._mute = False
        self.cut()

    async def stop(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        while self._tasks:
            self.cut()
            await asyncio.wait(self._tasks, timeout=0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)
            return
        self._writers.add(back_writer)
        try:
            await asyncio.gather(
                self._pump(reader, back_writer, answers=False),
                self._pump(back_reader, writer, answers=True),
            )
        finally:
            for end in (writer, back_writer):
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (answers and self._mute):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
