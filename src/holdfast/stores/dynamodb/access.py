"""How a boto3 client of the table is made: who we are, how long we wait, and that the SDK repeats nothing."""

from __future__ import annotations

import functools
from typing import Any

from holdfast.stores.dynamodb import DynamodbConfig

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 10.0


def connect(config: DynamodbConfig, connections: int) -> Any:
    """A client. Sends nothing to DynamoDB yet. Raises what botocore raises where there are no credentials."""
    import boto3
    from botocore.config import Config

    session = _session_of_role(config) if config.sts_role_arn else boto3.Session()
    return session.client(
        "dynamodb",
        region_name=config.region,
        endpoint_url=config.endpoint_url,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=connections,
            tcp_keepalive=True,
        ),
    )


def _session_of_role(config: DynamodbConfig) -> Any:
    """A session whose credentials are those of the role, taken anew before they expire."""
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import NoCredentialsError
    from botocore.session import get_session

    own = get_session()
    ours = own.get_credentials()
    if ours is None:
        raise NoCredentialsError
    named = {"RoleSessionName": "holdfast"}
    if config.sts_external_id is not None:
        named["ExternalId"] = config.sts_external_id
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=functools.partial(own.create_client, region_name=config.region),
        source_credentials=ours,
        role_arn=str(config.sts_role_arn),
        extra_args=named,
    )
    assumed = get_session()
    credentials = DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)
    # botocore has no other way to hand in credentials that renew themselves.
    vars(assumed)["_credentials"] = credentials
    return boto3.Session(botocore_session=assumed)
