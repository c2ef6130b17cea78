"""Settings of alerts: what raises one, and where it goes."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from holdfast.config.options import Options
from holdfast.config.secrets import SECRET_ERROR, Secret
from holdfast.config.units import Duration, PositiveCount


def _check_web_address(url: Secret) -> Secret:
    text = url.reveal()
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        parts, host, port = urlsplit(""), b"", None
    if parts.scheme not in {"http", "https"} or not host or port == 0 or not re.fullmatch(r"[!-~]+", text):
        message = "is not a web address; write https://host/path, with percent-encoding for non-ASCII characters"
        raise PydanticCustomError(SECRET_ERROR, message)
    if "@" in parts.netloc:
        raise PydanticCustomError(
            SECRET_ERROR,
            "a user name or password before the host would not be sent; use an address with a token in its path",
        )
    return url


class WebhookSettings(Options):
    """Where alerts are sent to, as JSON."""

    url: Annotated[Secret, AfterValidator(_check_web_address)] = Field(
        description="Address that alerts are posted to, http or https; a secret, because many carry a token."
    )
    allow_private: bool = Field(
        False,
        description="Allow an address of this host or of a private network; link-local ones are always refused.",
    )
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        "5s", validate_default=True, description="How long one request may take in total."
    )


class AlertSettings(Options):
    """What raises an alert, and where it goes besides log and metrics."""

    webhook: WebhookSettings | None = Field(
        None, description="Where alerts are sent to, as JSON; nowhere unless given."
    )
    unreachable_after: Annotated[Duration, Field(gt=0)] = Field(
        "20s",
        validate_default=True,
        description="A store, source or sink that is unavailable for this long raises an alert.",
    )
    lag_records: PositiveCount | None = Field(
        None, description="A partition with more unread records than this raises an alert; no limit unless given."
    )
    lag_seconds: PositiveCount | None = Field(
        None,
        description="A partition whose oldest unread record is older than this raises an alert; no limit unless given.",
    )
    repeat_after: Annotated[Duration, Field(gt=0)] = Field(
        "1h",
        validate_default=True,
        description="After this time an alert is raised again if its cause persists; otherwise it is cleared.",
    )
