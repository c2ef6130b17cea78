"""Clients of Amazon's services: who they are (keys, a profile, a role to assume), and how they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.options import AddedLater, Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import Secret

SESSION_NAME = "holdfast"
"""The name of sessions of assumed roles, as CloudTrail shows it."""
S3_REGION = "us-east-1"
"""The region of S3 if none is given."""


class AwsRoleOptions(Options):
    """Settings that choose a profile and a role.

    Without them, the environment, the shared profile and the machine's role are tried.
    """

    profile: Annotated[str | None, Field(min_length=1), AddedLater] = Field(
        None, description="Profile of the shared configuration files; it must exist on every executor, too."
    )
    sts_role_arn: Annotated[str | None, Field(pattern=r"^arn:[^:]+:iam::\d{12}:role/.+$"), AddedLater] = Field(
        None, description="A role to assume; its credentials are renewed before they expire."
    )
    sts_external_id: Annotated[str | None, Field(min_length=2), AddedLater] = Field(
        None, description="The external id that this role requires."
    )

    @model_validator(mode="after")
    def _external_id_is_for_a_role(self) -> Self:
        if self.sts_external_id is not None and self.sts_role_arn is None:
            raise PydanticCustomError(PLAIN_ERROR, "sts_external_id needs sts_role_arn")
        return self


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Who a client is. Picklable; hides secrets. If all fields are None, boto3's usual chain of credentials is used."""

    access_key_id: Secret | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None

    @classmethod
    def of(cls, options: Any) -> AwsIdentity:
        """Return the identity that settings describe; fields that the settings do not have are left out."""
        names = ("access_key_id", "secret_access_key", "session_token", "profile", "sts_role_arn", "sts_external_id")
        return cls(*(getattr(options, name, None) for name in names))

    def session(self, region: str | None) -> Any:
        """Return a boto3 session. Sends nothing; a role is assumed with the first request that needs credentials.

        Raises what botocore raises for an unknown profile. A request raises `NoCredentialsError` if there are no
        credentials, also if there are none to assume a role with; a later request looks for them again.
        """
        import boto3
        from botocore.session import Session

        core = Session(profile=self.profile)
        if self.access_key_id is not None and self.secret_access_key is not None:
            token = None if self.session_token is None else self.session_token.reveal()
            core.set_credentials(self.access_key_id.reveal(), self.secret_access_key.reveal(), token)
        if self.role_arn is not None:
            core = self._assumed(core, region)
        return boto3.Session(botocore_session=core, region_name=region)

    def _assumed(self, core: Any, region: str | None) -> Any:
        """Return a session with credentials of the role, which are renewed before they expire."""
        from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
        from botocore.exceptions import NoCredentialsError
        from botocore.session import Session

        def new_client(service: str, **arguments: Any) -> Any:
            return core.create_client(service, region_name=region, **arguments)

        named = {"RoleSessionName": SESSION_NAME}
        if self.external_id is not None:
            named["ExternalId"] = self.external_id

        def fetched() -> Any:
            # Looked up here and not before, so that a request without them fails and can be repeated.
            ours = core.get_credentials()
            if ours is None:
                raise NoCredentialsError
            return AssumeRoleCredentialFetcher(new_client, ours, str(self.role_arn), named).fetch_credentials()

        assumed = Session(profile=self.profile)
        credentials = DeferredRefreshableCredentials(method="assume-role", refresh_using=fetched)
        # botocore has no other way to hand in credentials that renew themselves.
        vars(assumed)["_credentials"] = credentials
        return assumed


def aws_client(
    session: Any,
    service: str,
    *,
    endpoint_url: str | None,
    connect_timeout: float,
    read_timeout: float,
    connections: int,
    tries: int = 1,
    **config: Any,
) -> Any:
    """Return a client of a service, from a session of `AwsIdentity`. Sends nothing; raises what botocore raises.

    botocore sends a request up to `tries` times; with 1, only the caller repeats requests. `config` holds additional
    settings of botocore's `Config`. S3 needs no region on servers other than Amazon's, so S3 gets a default region.
    """
    from botocore.config import Config

    given = Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        max_pool_connections=connections,
        retries={"total_max_attempts": tries, "mode": "standard"},
        **config,
    )
    region = session.region_name or (S3_REGION if service == "s3" else None)
    return session.client(service, region_name=region, endpoint_url=endpoint_url, config=given)
