"""How to reach a cluster: picklable, and connected where it is used. Errors become holdfast's own."""

from __future__ import annotations

import logging
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdfast.config import Secret
from holdfast.errors import Refused, SinkUnavailable

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AwsAccess:
    """Requests are signed for a region. Without keys: environment, profile, role of the machine."""

    region: str
    service: str = "es"
    access_key_id: Secret | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None

    def signer(self) -> Any:
        """Signs each request, with keys that are renewed when they expire."""
        import boto3
        from opensearchpy import Urllib3AWSV4SignerAuth

        credentials = boto3.Session(
            aws_access_key_id=_revealed(self.access_key_id),
            aws_secret_access_key=_revealed(self.secret_access_key),
            aws_session_token=_revealed(self.session_token),
            region_name=self.region,
        ).get_credentials()
        if credentials is None:
            raise SinkUnavailable("there are no AWS credentials to sign requests with")
        return Urllib3AWSV4SignerAuth(credentials, self.region, self.service)


@dataclass(frozen=True)
class Tls:
    """What a server's certificate is checked against, and what we show it of ourselves."""

    ca: str | None = None
    """Certificates of authorities, as PEM text; those of the system unless given."""
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
    hosts: tuple[str, ...]
    username: str | None = None
    password: Secret | None = None
    api_key: Secret | None = None
    aws: AwsAccess | None = None
    tls: Tls = field(default_factory=Tls)
    timeout: float = 60.0
    gzip: bool = False

    @property
    def place(self) -> str:
        """For people."""
        return f"the cluster at {', '.join(self.hosts)}"

    def connect(self, connections: int = 1, *, verbatim: bool = False) -> Any:
        """A client; nothing is sent yet. It repeats nothing by itself. `verbatim`: its answers are texts."""
        from opensearchpy import OpenSearch
        from urllib3.exceptions import InsecureRequestWarning

        # Whatever goes wrong is told by our own events.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        if not self.tls.verify:
            # The settings ask for it, and their reference says what it means.
            warnings.simplefilter("ignore", InsecureRequestWarning)
        given: dict[str, Any] = {"serializers": {"application/json": _Verbatim()}} if verbatim else {}
        return OpenSearch(
            hosts=list(self.hosts),
            http_auth=self._credentials(),
            headers=self._headers(),
            ssl_context=self.tls.context() if self._is_encrypted() else None,
            timeout=self.timeout,
            pool_maxsize=connections,
            max_retries=0,
            retry_on_status=(),
            **given,
        )

    def call(self, ask: Callable[[], _Result]) -> _Result:
        """What `ask` answers. Raises `SinkUnavailable` where waiting helps, `Refused` where it does not."""
        from opensearchpy.exceptions import ConnectionError as NoConnection
        from opensearchpy.exceptions import SSLError, TransportError

        try:
            return ask()
        except SSLError as error:
            raise Refused(f"{self.place} cannot be trusted: {error.error}") from error
        except NoConnection as error:
            raise SinkUnavailable(f"{self.place} does not answer: {short(error)}") from error
        except TransportError as error:
            if error.status_code in {401, 403}:
                raise Refused(f"{self.place} does not let us in: {short(error)}") from error
            if error.status_code in {408, 429, 500, 502, 503, 504}:
                raise SinkUnavailable(f"{self.place} cannot do it now: {short(error)}") from error
            raise Refused(f"{self.place} refuses: {short(error)}") from error

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
    """Leaves an answer as the text that it is: most are not worth to be parsed."""

    mimetype = "application/json"

    def loads(self, text: str) -> str:
        return text


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def short(error: Any) -> str:
    """What a client error says, in one line."""
    info = getattr(error, "info", None)
    reason = info.get("error") if isinstance(info, dict) else None
    if isinstance(reason, dict):
        return f"{error.status_code} {reason.get('type')}: {reason.get('reason')}"[:500]
    return f"{error.status_code} {error.error}"[:500]
