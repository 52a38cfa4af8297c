"""Runs a command while it holds a lock, unless one of some files is there: `locked.py LOCK FILE... -- COMMAND...`.

The lock lasts as long as this process, which outlives the one that started it and ends with the command's status. It is run by
its path, so that a job costs no import of the package.
"""

import signal
import subprocess
import sys
from pathlib import Path

from filelock import FileLock


def main(argv: list[str]) -> int:
    """The command's exit status, as a shell gives it; 0 where a file was there once the lock was free."""
    end = argv.index("--")
    (lock, *files), command = argv[:end], argv[end + 1 :]
    with FileLock(lock):
        if any(Path(file).exists() for file in files):
            return 0
        process = subprocess.Popen(command)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command itself
        status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
