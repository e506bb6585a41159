"""Leaving the flight record when a signal ends the process.

A launcher ends the ranks of a failed job with SIGTERM. Python runs a handler only between two of
its instructions, and a rank that hangs may be inside MPI or NCCL; so a thread that waits for the
signal's number does it, and ends the process as the signal would have done.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from types import FrameType

from pynccl import recorder

__all__ = ["watch"]

SIGNALS = (signal.SIGTERM, signal.SIGABRT)
# Seconds after which a process ends without its record: the folder may not answer.
PATIENCE = 5
_ending = threading.Lock()
_by = 0  # the thread that ends the process
_process = os.getpid()
_writing = -1
_paused = False
_forking = threading.local()  # the mask of signals that a thread had before it forks


def watch() -> None:
    """Leave the record at SIGTERM and SIGABRT, unless the program has a handler of its own.

    Without effect outside the main thread, which alone may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    global _process
    _process = os.getpid()
    ours = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _handle)
    if not ours:
        return
    _open_pipe()
    os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_forget)


def _open_pipe() -> None:
    """Let the numbers of signals be written to a pipe, and a thread read them."""
    global _writing
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != -1:  # an event loop's: the handlers alone must do
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(reading)
        os.close(writing)
        return
    _writing = writing
    threading.Thread(
        target=_listen, args=(reading,), name="pynccl flight recorder", daemon=True
    ).start()


def _listen(reading: int) -> None:
    while True:
        for number in os.read(reading, 64):
            if number in SIGNALS and signal.getsignal(number) == _handle:
                _end(number)


def _handle(number: int, _frame: FrameType | None) -> None:
    _end(number)


def _end(number: int) -> None:
    """Leave the record and let the signal do what it does without a handler, from any thread."""
    global _by
    if not _ending.acquire(blocking=False):
        if _by != threading.get_ident():
            _ending.acquire()  # waits for the other thread to end the process
        return
    _by = threading.get_ident()
    libc = ctypes.CDLL(None)  # signal.signal is for the main thread alone
    libc.signal(signal.SIGALRM, None)
    signal.alarm(PATIENCE)
    if os.getpid() == _process:
        recorder.ended(signal.Signals(number).name)
    libc.signal(number, None)
    os.kill(os.getpid(), number)


def _pause() -> None:
    """Keep a child that is about to be forked from writing to this process's pipe.

    A signal that reaches it before ``_forget`` has run must not be lost: it waits so long.
    """
    global _paused
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _paused = False
    if threading.current_thread() is threading.main_thread():
        there = signal.set_wakeup_fd(-1)
        _paused = there == _writing != -1
        if there not in (-1, _writing):
            signal.set_wakeup_fd(there)


def _resume() -> None:
    if _paused:
        signal.set_wakeup_fd(_writing, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget() -> None:
    """Undo ``watch`` in a forked child, which has no thread and leaves no record."""
    there = signal.set_wakeup_fd(-1)
    if there not in (-1, _writing):
        signal.set_wakeup_fd(there)
    for number in SIGNALS:
        if signal.getsignal(number) == _handle:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
