"""Fetches small objects with obstore, in a fifth of the time that botocore takes for a request.

Only a complete response with the expected ETag counts. In all other cases the result is None, and the caller repeats
the request through `S3Client`, which handles errors.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from holdfast.s3.access import S3Access

if TYPE_CHECKING:
    from obstore.store import S3Store

CONNECT_WITHIN = "5s"


def fetch(access: S3Access, key: str, etag: str) -> bytes | None:
    """All bytes of the object if it has this ETag; None if it does not, or if the request fails.

    Blocks for a request or two, and may be called by several threads.
    """
    import obstore
    from botocore.exceptions import BotoCoreError
    from obstore.exceptions import BaseError

    try:
        store = _store_of(access)
        return None if store is None else obstore.get(store, key, options={"if_match": etag}).bytes().to_bytes()
    except (BaseError, BotoCoreError, OSError, ValueError):  # ValueError: there are no credentials
        return None


_stores: dict[S3Access, S3Store] = {}
_opening = threading.Lock()
_user = os.getpid()


def _store_of(access: S3Access) -> S3Store | None:
    """The client; None in a process forked from one that has used obstore, because its threads are missing here."""
    global _user  # noqa: PLW0603 - the process that has used it first
    with _opening:
        # obstore signs no header that names the owner of the bucket.
        if access.owner is not None or (_stores and _user != os.getpid()):
            return None
        if access not in _stores:
            _stores[access] = _connect(access)
            _user = os.getpid()
        return _stores[access]


def _connect(access: S3Access) -> S3Store:
    from obstore.store import S3Store

    settings: dict[str, Any] = {
        "region": access.region or "us-east-1",
        "virtual_hosted_style_request": not access.path_style,
    }
    if access.endpoint_url is not None:
        settings["endpoint"] = access.endpoint_url
    identity = access.identity
    if identity.access_key_id is not None and identity.secret_access_key is not None and identity.role_arn is None:
        settings["access_key_id"] = identity.access_key_id.reveal()
        settings["secret_access_key"] = identity.secret_access_key.reveal()
        if identity.session_token is not None:
            settings["session_token"] = identity.session_token.reveal()
    else:
        settings["credential_provider"] = _provider(access)
    patience = f"{access.patience:g}s"
    options: Any = {"allow_http": True, "connect_timeout": CONNECT_WITHIN, "timeout": patience}
    return S3Store(access.bucket, client_options=options, retry_config={"max_retries": 1}, **settings)


def _provider(access: S3Access) -> Any:
    """Credentials from boto3's chain: environment, profile, role of the machine."""
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(access.session())
