"""A real S3 server (versitygw) for tests and benchmarks: on loopback, its objects are files in a temporary folder.

    with running(S3Server) as s3:
        s3.create_bucket("lake")
        s3.client().put_object(Bucket="lake", Key="a", Body=b"1", IfNoneMatch="*")

It can be stopped, killed (`crash`), frozen and thawed, and started again on the same port with its objects. Keys `a`
and `a/b` cannot both exist, and a bucket's name has at least three characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

from tests.servers.processes import HOW_TO_INSTALL, Server, cache_folder

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

VERSION = "v1.8.0"
ACCESS_KEY, SECRET_KEY = "test", "testsecret"
REGION = "us-east-1"


class S3Server(Server):
    """Settings are versitygw's long options, such as `region`, without the dashes."""

    refuses_root = False

    @property
    def endpoint(self) -> str:
        """The value of `endpoint_url`."""
        return f"http://127.0.0.1:{self.port}"

    def initialise(self) -> None:
        (self.folder / "objects").mkdir()

    def command(self) -> Sequence[str]:
        program = cache_folder() / "bin" / f"versitygw-{VERSION}"
        if not program.is_file():
            raise RuntimeError(f"there is no {program}; {HOW_TO_INSTALL}")
        given = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        # Without the address it would listen on every interface.
        address = ("--port", f"127.0.0.1:{self.port}", "--health", "/health", "--quiet")
        return (str(program), *address, *given, "posix", str(self.folder / "objects"))

    def environment(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def client(self, port: int | None = None, **settings: Any) -> S3Client:
        """A boto3 client that tries once, of this server or of a proxy's port; `settings` are botocore's `Config`."""
        import boto3
        from botocore.config import Config

        config = Config(**{"retries": {"total_max_attempts": 1, "mode": "standard"}, **settings})
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port or self.port}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=config,
        )

    def create_bucket(self, name: str) -> None:
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
