"""How to reach a cluster. Picklable; the client connects where it is used. Its errors become holdfast's errors."""

from __future__ import annotations

import json
import logging
import ssl
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdfast.config import Secret
from holdfast.config.aws import AwsIdentity
from holdfast.errors import Refused, SinkUnavailable
from holdfast.sinks.opensearch.bulk_response import is_cluster_error, not_a_response

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AwsAccess:
    """Signing of requests for a region.

    Without keys, those of the environment, the profile or the machine's role are used.
    """

    region: str
    service: str = "es"
    identity: AwsIdentity = AwsIdentity()

    def signer(self) -> Any:
        """Return the signer of requests. Keys that expire are renewed."""
        from opensearchpy import Urllib3AWSV4SignerAuth

        credentials = self.identity.session(self.region).get_credentials()
        if credentials is None:
            raise SinkUnavailable("there are no AWS credentials to sign requests with")
        return Urllib3AWSV4SignerAuth(credentials, self.region, self.service)


@dataclass(frozen=True)
class Tls:
    """How the server's certificate is verified, and the certificate of the client."""

    ca: str | None = None
    """Certificates of authorities as PEM text; those of the system unless given."""
    client_cert: str | None = None
    client_key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca)
        if self.client_cert is not None:
            context.load_cert_chain(self.client_cert, self.client_key)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True)
class Access:
    """The addresses of a cluster, and how to log in."""

    hosts: tuple[str, ...]
    username: str | None = None
    password: Secret | None = None
    api_key: Secret | None = None
    aws: AwsAccess | None = None
    tls: Tls = field(default_factory=Tls)
    timeout: float = 60.0
    gzip: bool = False

    @property
    def label(self) -> str:
        """The cluster's name in messages."""
        return f"the cluster at {', '.join(self.hosts)}"

    def connect(self, connections: int = 1, *, verbatim: bool = False) -> Any:
        """Returns a client that does not retry. Sends nothing. `verbatim`: the client returns responses as text."""
        from opensearchpy import OpenSearch
        from urllib3.exceptions import InsecureRequestWarning

        # Errors are reported as events.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        if not self.tls.verify:
            # `tls.verify` is off in the settings.
            warnings.simplefilter("ignore", InsecureRequestWarning)
        options: dict[str, Any] = {"serializers": {"application/json": _Verbatim()}} if verbatim else {}
        return OpenSearch(
            hosts=list(self.hosts),
            http_auth=self._credentials(),
            headers=self._headers(),
            ssl_context=self.tls.context() if self._is_encrypted() else None,
            timeout=self.timeout,
            pool_maxsize=connections,
            max_retries=0,
            retry_on_status=(),
            connection_class=_connection_class(),
            **options,
        )

    def call(self, request: Callable[[], _Result]) -> _Result:
        """Return the result of `request`. Raises `SinkUnavailable` if waiting helps, `Refused` if it does not."""
        from opensearchpy.exceptions import ConnectionError as NoConnection
        from opensearchpy.exceptions import SerializationError, SSLError, TransportError

        try:
            return request()
        except SSLError as error:
            raise Refused(f"{self.label} cannot be trusted: {error.error}") from error
        except NoConnection as error:
            raise SinkUnavailable(f"{self.label} does not respond: {summary(error)}") from error
        except SerializationError as error:
            raise self.unexpected_response(error) from error
        except TransportError as error:
            raise self._refusal(error) from error

    def unexpected_response(self, response: object) -> SinkUnavailable:
        """The error for a response that does not come from a search cluster, but for example from a proxy."""
        return SinkUnavailable(f"{self.label}: {not_a_response(response)}")

    def _refusal(self, error: Any) -> SinkUnavailable | Refused:
        if error.status_code in {408, 429, 500, 502, 503, 504}:
            return SinkUnavailable(f"{self.label} cannot serve the request now: {summary(error)}")
        if not is_cluster_response(error):
            return self.unexpected_response(summary(error))
        if is_cluster_error(error.info.get("error") if isinstance(error.info, dict) else None):
            return SinkUnavailable(f"{self.label} cannot serve the request now: {summary(error)}")
        if error.status_code in {401, 403}:
            return Refused(f"{self.label} denies access: {summary(error)}")
        return Refused(f"{self.label} refuses the request: {summary(error)}")

    def _is_encrypted(self) -> bool:
        return any(urlsplit(host).scheme == "https" for host in self.hosts)

    def _credentials(self) -> Any:
        if self.aws is not None:
            return self.aws.signer()
        if self.username is None or self.password is None:
            return None
        return (self.username, self.password.reveal())

    def _headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"authorization": f"ApiKey {self.api_key.reveal()}"}


class _Verbatim:
    """Returns a response as text: most responses need not be parsed."""

    mimetype = "application/json"

    def loads(self, text: str) -> str:
        return text


def _connection_class() -> Any:
    from opensearchpy import Urllib3HttpConnection
    from opensearchpy.exceptions import HTTP_EXCEPTIONS, TransportError

    class Connection(Urllib3HttpConnection):
        """A connection that accepts any JSON response; the client's class fails on those that are not objects."""

        def _raise_error(self, status_code: int, raw_data: str | bytes, content_type: str | None = None) -> None:
            if (content_type or "").partition(";")[0].strip().endswith("json"):
                with suppress(ValueError):
                    info = json.loads(raw_data)
                    if isinstance(info, dict):
                        raise HTTP_EXCEPTIONS.get(status_code, TransportError)(status_code, raw_data, info)
            raise HTTP_EXCEPTIONS.get(status_code, TransportError)(status_code, raw_data, None)

    return Connection


def is_cluster_response(error: Any) -> bool:
    """Whether an error response comes from a search cluster: it is JSON and not a redirect.

    Only a 401 may be plain text.
    """
    if 300 <= error.status_code < 400:
        return False
    is_page = str(error.error).lstrip()[:1] == "<"
    return isinstance(error.info, dict) or (error.status_code == 401 and not is_page)


def summary(error: Any) -> str:
    """The message of a client error, in one line."""
    info = getattr(error, "info", None)
    reason = info.get("error") if isinstance(info, dict) else None
    if isinstance(reason, dict):
        return f"{error.status_code} {reason.get('type')}: {reason.get('reason')}"[:500]
    return " ".join(f"{error.status_code} {error.error}".split())[:500]
