"""The processor: a DataFrame in, a DataFrame out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Processor(ABC):
    """One step between reading and staging. Lazy: it adds to the plan and runs nothing."""

    @abstractmethod
    def apply(self, frame: Any) -> Any:
        """The frame with this step added.

        Must keep the system columns (`holdfast.flow.source.SYSTEM_COLUMNS`) and every row that carries a fault.
        """
