"""Ctrl-C that ends a command within a second, also while it is inside a library that does not come back."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: How a shell calls the end by SIGINT.
STATUS = 130
#: How long a command may take to clean up before its process is ended without that.
_SECONDS = 0.5


def message(command: str) -> str:
    """What is said to whoever interrupts."""
    return f"bitsparse {command}: interrupted"


@contextmanager
def ended_soon(command: str) -> Iterator[None]:
    """End the process if an interruption does not end the block within half a second.

    Python raises KeyboardInterrupt between two of its own instructions only, so a kernel or a sort of a minute goes on for that minute.
    The signal's number, however, is written to a socket at once, and a thread that reads it can act while a library computes
    without the interpreter's lock (GIL), as NumPy, SciPy's sparse arrays and this library's kernels do. A file that is being written
    then stays behind under its temporary name; a run with ``--resume`` goes on from it.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
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
