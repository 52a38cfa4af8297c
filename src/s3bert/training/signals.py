"""Signals that ask a training to stop: Ctrl-C, a scheduler's SIGTERM, and its notice before a preemption, SIGUSR1."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_NOTE = "\n{}: the run stops after this step, with a checkpoint. Once more, and it leaves at once.\n"


class StopRequest:
    """Within it the first signal is only kept, in `signal`, for the training to read between two steps; the next one acts as without it.

    Elsewhere than in the main thread, where Python allows no handlers, it keeps nothing.

    Args:
        speaks: say on the terminal what will happen.
    """

    def __init__(self, speaks: bool = True):
        self.signal: signal.Signals | None = None
        self.speaks, self.process = speaks, os.getpid()
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._keep) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        if os.getpid() != self.process:  # a worker that was forked with this handler
            os.kill(os.getpid(), number)
            return
        self.signal = signal.Signals(number)
        if self.speaks:
            os.write(2, _NOTE.format(self.signal.name).encode())  # a handler may not log: it may have interrupted a log

    def _give_back(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
