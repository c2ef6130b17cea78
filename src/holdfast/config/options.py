"""What every group of settings is made from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Base class of every group of settings, also of a plugin's `Config`: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class AddedLater:
    """Marks a setting that earlier versions did not have: at its default, it is left out of a generation's digest."""
