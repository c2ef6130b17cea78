"""Requests to S3: one client for each process and access, with retries that are safe and readable errors.

botocore's own retries are off: after one of them, "it existed before" and "this request created it" look the same.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.config.aws import S3_REGION, aws_client
from holdfast.errors import Unavailable
from holdfast.flow.names import OURS
from holdfast.s3.access import S3Access

if TYPE_CHECKING:
    from obstore.store import S3Store

TRIES = 4
THREADS = 16
CONNECT_TIMEOUT = 5.0
_FIRST_PAUSE = 0.1

_RETRYABLE = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "ConditionalRequestConflict", "OperationAborted"}
_DENIED = {"NoSuchBucket", "PermanentRedirect", "InvalidBucketName", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_CREATING = {"PutObject", "CreateMultipartUpload", "CopyObject"}
"""Operations that decide what an object has besides its bytes."""
_Input = TypeVar("_Input")
_Result = TypeVar("_Result")


class Missing(Exception):
    """The object or upload does not exist."""


class Exists(Exception):
    """The request would have overwritten an object.

    `perhaps_ours`: an earlier try had no response and may have made it.
    """

    def __init__(self, *, perhaps_ours: bool) -> None:
        super().__init__("an object is there already")
        self.perhaps_ours = perhaps_ours


class Denied(Unavailable):
    """Access is denied: wrong keys, a missing permission, no such bucket. At start this becomes `Refused`."""


class Unable(Unavailable):
    """The server does not support the request; repeating it will not help."""


class NotSent(Unavailable):
    """The connection failed: the request was not sent."""


class S3Client:
    """A client with a thread pool. Thread-safe; a forked process must not use it."""

    def __init__(self, access: S3Access) -> None:
        self.access = access
        self._client = _connect(access)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-s3")
        # Parts have threads of their own: whoever closes a file in the pool above waits for its parts.
        self._senders = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-s3-part")
        # And so have tasks that themselves use the pool above.
        self._callers = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-s3-task")

    def call(self, verb: str, take: Callable[[Any], Any] | None = None, /, **arguments: Any) -> Any:
        """The response to `verb` on the bucket, or the result of `take`, which may read the body as a stream.

        Blocks; retries temporary errors. Raises `Missing`, `Exists`, or `Unavailable` with the reason.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        perhaps_done = False
        give_up_at = time.monotonic() + self.access.patience
        for attempt in range(1, TRIES + 1):
            try:
                response = getattr(self._client, verb)(Bucket=self.access.bucket, **arguments)
                return response if take is None else take(response)
            except (BotoCoreError, ClientError, OSError) as error:
                if attempt == TRIES or time.monotonic() > give_up_at or not _is_passing(error):
                    raise self._translated(verb, arguments, error, perhaps_done) from error
                perhaps_done = perhaps_done or not _was_refused(error)
            time.sleep(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError

    def small_object(self, key: str, etag: str) -> bytes | None:
        """All bytes of a small object by the fastest client; None if that fails, and `call` reports why."""
        return fetch_small(self.access, key, etag)

    def each(self, do: Callable[[_Input], _Result], inputs: Iterable[_Input]) -> list[_Result]:
        """Call `do` for each input, several at a time; returns results in order. Raises the first error at the end."""
        return _results([self._pool.submit(do, given) for given in inputs])

    def run_all(self, tasks: Iterable[Callable[[], _Result]]) -> list[_Result]:
        """Run the tasks, several at a time; returns their results in order.

        Tasks may call `each`, but not `run_all`.
        """
        return _results([self._callers.submit(task) for task in tasks])

    def submit(self, do: Callable[[], _Result]) -> Future[_Result]:
        """Run `do` in another thread. It must not wait for other calls."""
        return self._senders.submit(do)

    def pages(
        self, verb: str, items: str, observe: Callable[[Any], None] | None = None, /, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        """All objects of a listing, page by page; `observe` is called with each response."""
        more: dict[str, Any] = {}
        while True:
            page = self.call(verb, **arguments, **more)
            if observe is not None:
                observe(page)
            yield from page.get(items, ())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _translated(self, verb: str, arguments: dict[str, Any], error: Exception, perhaps_done: bool) -> Exception:
        status, code = _status(error), error_code(error)
        if code == "PreconditionFailed" or status == 412:
            return Exists(perhaps_ours=perhaps_done)
        if code in {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}:
            return Missing(f"{verb}: {code}")
        where = "/".join([f"s3://{self.access.bucket}", *filter(None, [arguments.get("Key", arguments.get("Prefix"))])])
        at = f" at {self.access.endpoint_url}" if self.access.endpoint_url else ""
        message = f"cannot {verb.replace('_', ' ')} {where}{at}: {_reason(error)}"
        if status in {401, 403} or code in _DENIED or _is_credentials(error):
            return Denied(message)
        if _is_hopeless(error):
            return Unable(message)
        return NotSent(message) if _was_never_sent(error) and not perhaps_done else Unavailable(message)


def _results(futures: Sequence[Future[_Result]]) -> list[_Result]:
    errors = [error for error in [future.exception() for future in futures] if error is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def _connect(access: S3Access) -> Any:
    session = access.session()
    # boto3's session offers no way to its core, which has the parser.
    core = vars(session)["_session"]
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    client = aws_client(
        session,
        "s3",
        endpoint_url=access.endpoint_url,
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=access.patience,
        connections=3 * THREADS,
        # The signature covers the bytes; other checksums are not supported by every server.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        signature_version="s3v4",
        s3={"addressing_style": "path" if access.path_style else "auto"},
    )
    client.meta.events.register("provide-client-params.s3.*", functools.partial(_complete, access))
    return client


def _complete(access: S3Access, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
    """Return the parameters of a request, with the owner of the bucket and the settings of written objects added."""
    members = model.input_shape.members
    added: dict[str, str] = {}
    if access.owner is not None:
        owners = ("ExpectedBucketOwner", "ExpectedSourceBucketOwner")
        added |= {name: access.owner for name in owners if name in members}
    if model.name in _CREATING:
        added |= access.written.parameters()
        if f"/{OURS}/" in f"/{params['Key']}":
            added.pop("StorageClass", None)  # holdfast reads and deletes these soon, which colder classes charge for
        if access.written.tags and "TaggingDirective" in members:
            added["TaggingDirective"] = "REPLACE"  # a copy has the tags of its source otherwise
    return {**added, **params}


def _moment(value: Any) -> datetime:
    """Parse a timestamp as botocore does, but faster: its own parser takes half of the time of a listing."""
    from botocore.utils import parse_timestamp

    if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z"):
        return datetime.fromisoformat(value)
    moment: datetime = parse_timestamp(value)
    return moment


# --- errors ----------------------------------------------------------------------------------------------------------


def _status(error: Exception) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(response, dict) else 0


def error_code(error: BaseException | None) -> str:
    """The code that the server gives the error; empty if the error is not a server's."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _is_passing(error: Exception) -> bool:
    """Whether the error is temporary, so that the same request may succeed soon."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        return _status(error) in {429, 500, 502, 503, 504} or error_code(error) in _RETRYABLE
    lines = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, OSError)
    return isinstance(error, lines)


def _is_hopeless(error: Exception) -> bool:
    """Whether the server, or a client that is too old, does not support the request."""
    from botocore.exceptions import ParamValidationError

    return isinstance(error, ParamValidationError) or (_status(error) >= 400 and not _is_passing(error))


def _was_refused(error: Exception) -> bool:
    """Whether the request had no effect: it was not sent, or the server refused it."""
    return _was_never_sent(error) or 400 <= _status(error) < 500


def _was_never_sent(error: Exception) -> bool:
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

    return isinstance(error, ConnectTimeoutError | EndpointConnectionError)


def _is_credentials(error: Exception) -> bool:
    return "Credential" in type(error).__name__


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return str(error)
    details = response.get("Error", {})
    return f"{details.get('Code', '')} {details.get('Message', '')} (HTTP {_status(error)})".strip()


# --- one client per process and access -------------------------------------------------------------------------------

_clients: dict[S3Access, S3Client] = {}
_opening = threading.Lock()


def client_of(access: S3Access) -> S3Client:
    """This process's client, created on first use. Raises `Unavailable` if that fails."""
    from botocore.exceptions import BotoCoreError

    with _opening:
        if access not in _clients:
            try:
                _clients[access] = S3Client(access)
            except (BotoCoreError, OSError) as error:
                # It reads files of its own: without free descriptors they are said to be missing.
                raise Unavailable(f"cannot make a client for s3://{access.bucket}: {error}") from error
        return _clients[access]


def _forget_clients() -> None:
    """Drop all clients in a forked process: it has the parent's sockets and none of its threads."""
    global _opening  # noqa: PLW0603 - the lock may be held by a thread that is not here
    _opening = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_clients)


# --- small objects ---------------------------------------------------------------------------------------------------

_stores: dict[S3Access, S3Store] = {}
_user = os.getpid()


def fetch_small(access: S3Access, key: str, etag: str) -> bytes | None:
    """All bytes of the object if it has this ETag; None if it does not, or if the request fails.

    By obstore, which takes a fifth of botocore's time for a request. Blocks for a request or two; thread-safe.
    """
    import obstore
    from botocore.exceptions import BotoCoreError
    from obstore.exceptions import BaseError

    try:
        store = _store_of(access)
        return None if store is None else obstore.get(store, key, options={"if_match": etag}).bytes().to_bytes()
    except (BaseError, BotoCoreError, OSError, ValueError):  # ValueError: there are no credentials
        return None


def _store_of(access: S3Access) -> S3Store | None:
    """The client; None in a process forked from one that has used obstore, because its threads are missing here."""
    global _user  # noqa: PLW0603 - the process that has used it first
    with _opening:
        # obstore signs no header that names the owner of the bucket.
        if access.owner is not None or (_stores and _user != os.getpid()):
            return None
        if access not in _stores:
            _stores[access] = _open_store(access)
            _user = os.getpid()
        return _stores[access]


def _open_store(access: S3Access) -> S3Store:
    from obstore.store import S3Store

    settings: dict[str, Any] = {
        "region": access.region or S3_REGION,
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
        settings["credential_provider"] = _credentials(access)
    patience = f"{access.patience:g}s"
    options: Any = {"allow_http": True, "connect_timeout": f"{CONNECT_TIMEOUT:g}s", "timeout": patience}
    return S3Store(access.bucket, client_options=options, retry_config={"max_retries": 1}, **settings)


def _credentials(access: S3Access) -> Any:
    """Credentials from boto3's chain: environment, profile, role of the machine."""
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(access.session())
