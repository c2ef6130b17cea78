"""Traffic of an application beside a test: work in a thread of its own while a block lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Traffic(ABC):
    """A context manager: `work` runs in a thread from the beginning of the block to its end."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.thread.join()

    @abstractmethod
    def work(self) -> None:
        """Returns soon after `stopping` is set."""
