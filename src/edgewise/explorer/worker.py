"""A process that computes for the page: questions come as lines, answers go as lines, one at a time.

    in    {"number": 7, "task": "map", "request": "..."}    {"cancel": 7}
    out   =ANSWER    !a refusal in words    ?an error of ours    -  (given up)

It ends when nobody can ask any more: the system closes its input when the server ends, also when that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from types import FrameType
from typing import Any, BinaryIO

from edgewise.errors import BadInput


class GivenUp(BaseException):
    """Nobody waits for this answer any more; no `except Exception` on the way holds it."""


class Worker:
    """The main thread computes; another reads, and interrupts it where its question is cancelled."""

    def __init__(self, output: BinaryIO) -> None:
        self.output = output
        self.questions: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.current: int | None = None
        self.cancelled: int | None = None

    def read(self, source: BinaryIO) -> None:
        """Until the input is closed; then nobody is there to answer."""
        for line in source:
            message = json.loads(line)
            if "cancel" in message:
                self.cancelled = message["cancel"]
                signal.raise_signal(signal.SIGINT)  # its handler runs in the main thread
            else:
                self.questions.put(message)
        os._exit(0)

    def interrupt(self, _: int, frame: FrameType | None) -> None:
        """Stop what was cancelled, but not inside an import, which cannot be done twice; Ctrl-C is the server's."""
        if self.current is None or self.cancelled != self.current:
            return
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return
            frame = frame.f_back
        raise GivenUp

    def work(self) -> None:
        while True:
            message = self.questions.get()
            self.output.write(self.answer(message) + b"\n")
            self.output.flush()

    def answer(self, message: dict[str, Any]) -> bytes:
        from edgewise.explorer import tasks

        try:
            self.current = message["number"]
            if self.cancelled == self.current:
                return b"-"
            result = b"=" + getattr(tasks, message["task"])(message["request"])
            self.current = None
            return result
        except GivenUp:
            return b"-"
        except BadInput as refusal:
            return b"!" + json.dumps(str(refusal)).encode()
        except Exception as error:  # noqa: BLE001  (whatever it is, the server has to know)
            traceback.print_exc()
            return b"?" + json.dumps(f"{type(error).__name__}: {error}").encode()
        finally:
            self.current = None


def main() -> None:
    """What the library prints goes to the error stream: the output carries answers alone."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "nice"):
        os.nice(int(sys.argv[1]))
    worker = Worker(output)
    signal.signal(signal.SIGINT, worker.interrupt)
    threading.Thread(target=worker.read, args=(sys.stdin.buffer,), daemon=True).start()
    worker.work()


if __name__ == "__main__":
    main()
