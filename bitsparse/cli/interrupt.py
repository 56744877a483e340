"""Makes Ctrl-C end a command within a second, even while a library call keeps Python from handling it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The exit code that a shell shows for a process ended by SIGINT.
STATUS = 130
#: How long a command may clean up before its process is ended.
_SECONDS = 0.5


def message(command: str) -> str:
    """The message after an interruption."""
    return f"bitsparse {command}: interrupted"


@contextmanager
def ended_soon(command: str) -> Iterator[None]:
    """End the process if an interruption does not end the block within half a second.

    Python raises KeyboardInterrupt only between two of its own instructions, so a kernel or a sort that takes a minute would delay it for
    that minute. The signal's number, however, is written to a socket at once, and a thread that reads it can act while a library computes
    without the interpreter's lock (GIL), as NumPy, SciPy's sparse arrays and this library's kernels do. A file that is being written
    then stays behind under its temporary name; a run with ``--resume`` continues from it.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    signals, watched = socket.socketpair()
    signals.setblocking(False)
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(watched, over, command), daemon=True)
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        signals.close()
        watcher.join()


def _watch(watched: socket.socket, over: threading.Event, command: str) -> None:
    with watched:
        while numbers := watched.recv(64):
            if signal.SIGINT in numbers and not over.wait(_SECONDS):
                os.write(2, f"{message(command)}\n".encode())
                os._exit(STATUS)
