"""Settings of the sink `opensearch`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Duration, Options, PositiveCount, Secret
from holdfast.config.aws import AwsRoleOptions
from holdfast.config.hosts import is_local
from holdfast.config.kafka_client import LetterTopicOptions
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.sinks.opensearch.templates import IndexName, Template, is_index_name

ACTIONS = ("index", "create", "update", "upsert", "delete")
ID_KINDS = ("origin", "server")
DIRECT_ONLY = (
    "index",
    "allowed_indexes",
    "max_ahead",
    "data_stream",
    "action",
    "document_id",
    "routing",
    "version",
    "version_type",
    "text_field",
    "index_template",
)
"""Settings without a meaning in the mode `staged`."""


def _checked_host(url: str) -> str:
    # A password in an address would be shown with it.
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/-]*)?", url):
        raise PydanticCustomError(VALUE_ERROR, "is not an address of a cluster; write https://host:9200")
    return url.rstrip("/")


def _checked_template(text: str) -> str:
    try:
        Template(text)
    except ValueError as error:
        raise PydanticCustomError(PLAIN_ERROR, "{reason}", {"reason": str(error)}) from None
    return text


def _checked_id(text: str) -> str:
    if text in ID_KINDS:
        return text
    if Template(_checked_template(text)).constant is not None:
        raise PydanticCustomError(VALUE_ERROR, "is not origin, server or a template such as {id}")
    return text


def _checked_action(text: str) -> str:
    only = Template(_checked_template(text)).constant
    if only is not None and only not in ACTIONS:
        raise PydanticCustomError(VALUE_ERROR, f"is not an action; there are {', '.join(ACTIONS)}")
    return text


def _checked_index(name: str) -> str:
    if not is_index_name(name):
        raise PydanticCustomError(VALUE_ERROR, "is not an index name: lower case letters, digits, '.', '_' and '-'")
    return name


def _checked_prefix(text: str) -> str:
    if text and not is_index_name(text):
        raise PydanticCustomError(
            VALUE_ERROR, "is not the beginning of an index name: lower case letters, digits, '.', '_' and '-'"
        )
    return text


TemplateText = Annotated[str, Field(min_length=1), AfterValidator(_checked_template)]


class AwsOptions(AwsRoleOptions):
    """Sign requests for Amazon's services.

    Without keys, those of the environment, the profile or the machine's role are used.
    """

    region: str = Field(min_length=1, description="Region of the cluster.")
    service: Literal["es", "aoss"] = Field("es", description="`es` for a domain, `aoss` for a serverless collection.")
    access_key_id: Secret | None = Field(None, description="Key to sign with; prefer the role of the machine.")
    secret_access_key: Secret | None = Field(None, description="Secret that belongs to the key.")
    session_token: Secret | None = Field(None, description="Token of temporary keys.")


class TlsOptions(Options):
    """How certificates are verified."""

    ca_file: str | None = Field(
        None, description="Certificates of your authority (PEM), read by the node; those of the system unless given."
    )
    client_cert: str | None = Field(None, description="Client certificate (PEM); a path on every executor.")
    client_key: str | None = Field(None, description="Key of the client certificate (PEM); a path on every executor.")
    verify: bool = Field(
        True, description="Verify the server's certificate; otherwise others can intercept the connection."
    )
    allow_http_login: bool = Field(
        False, description="Send the password or API key unencrypted to addresses with `http://` on other hosts."
    )


class IndexTemplate(Options):
    """An index template in the server's format, put into the cluster at start."""

    name: str = Field(min_length=1, description="Name of the template in the cluster.")
    body: dict[str, Any] = Field(description="The template: index_patterns, template, data_stream and so on.")


class DeadLetterOptions(Options):
    """Where records that the index refuses are kept: in files or in an index."""

    file: Root | None = Field(
        None,
        description="Folder for files of dead letters, or `s3://bucket/prefix`. It belongs to this sink of this "
        "pipeline alone.",
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a folder there.")
    index: Annotated[str, AfterValidator(_checked_index)] | None = Field(
        None, description="Index for dead letters; `<pipeline>-deadletters` unless given."
    )
    kafka: LetterTopicOptions | None = Field(
        None, description="A Kafka topic that gets a copy of each dead letter, beside the files or the index."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.file is not None and self.index is not None:
            raise PydanticCustomError(PLAIN_ERROR, "dead letters go to files or to an index, not to both")
        if self.file is not None:
            check_together(self.file, self.s3)
        return self


class OpenSearchConfig(Options):
    """The cluster, the index, and how records become documents."""

    hosts: Annotated[tuple[Annotated[str, AfterValidator(_checked_host)], ...], Field(min_length=1)] = Field(
        description="Addresses of the cluster's nodes, such as `https://search:9200`."
    )
    username: str | None = Field(None, description="User name.")
    password: Secret | None = Field(None, description="Password of the user.")
    api_key: Secret | None = Field(None, description="API key, instead of name and password.")
    aws: AwsOptions | None = Field(None, description="Sign requests for Amazon's services instead of logging in.")
    tls: TlsOptions = Field(default_factory=TlsOptions, description="How certificates are verified.")
    mode: Literal["direct", "staged"] = Field(
        "direct",
        description="direct: records become documents of `index`. staged: for `holdfast reindex`; rows of live tables "
        "go to a staged index per entity, which takes the place of the former index when the run is promoted.",
    )
    index: TemplateText | None = Field(
        None,
        description="Index, data stream or alias: a name, or a template such as `logs-{tenant}-{@timestamp:%Y.%m.%d}`. "
        "Required unless `mode` is staged.",
    )
    staged_index_prefix: Annotated[str, AfterValidator(_checked_prefix)] = Field(
        "staged_", description="Beginning of the names of staged indexes: `<prefix><index>_<run>`."
    )
    keep_previous: Annotated[int, Field(ge=0)] = Field(
        1,
        description="How many former indexes of an entity are kept after a promotion, for `holdfast reindex rollback`. "
        "Older ones are deleted.",
    )
    allowed_indexes: tuple[str, ...] = Field(
        (),
        description="Patterns of indexes that records may name, such as `logs-*`. Required if `index` begins with a "
        "field; otherwise names must begin with the text before the first field.",
    )
    max_ahead: Duration | None = Field(
        "1d",
        validate_default=True,
        description="How far in the future, by the store's clock, a time in the name of the index may be. Records "
        "with a later time become dead letters, because it is a mistake of a producer; null: no limit.",
    )
    data_stream: bool = Field(False, description="The index is a data stream; records are created in it.")
    action: Annotated[str, AfterValidator(_checked_action)] | None = Field(
        None,
        description="index, create, update, upsert or delete, or a template such as `{op}` that gives one of these; "
        "index unless given, create in a data stream.",
    )
    document_id: Annotated[str, AfterValidator(_checked_id)] = Field(
        "origin",
        description="origin: made from the origin of the record, so that a batch that is written twice exists once. "
        "A template such as `{id}` or `{user.id}-{day}`. server: the server assigns ids, and a record that is written "
        "twice exists twice.",
    )
    routing: TemplateText | None = Field(None, description="Routing of documents, as a template such as `{tenant}`.")
    version: TemplateText | None = Field(
        None,
        description="External version of documents, as a template such as `{updated_at_ms}`, or `{_item}` for the "
        "record's item. An older version never replaces a newer one.",
    )
    version_type: Literal["external", "external_gte"] = Field(
        "external", description="external: only a higher version is written. external_gte: also an equal one."
    )
    pipeline: str | None = Field(None, min_length=1, description="Ingest pipeline that documents go through.")
    text_field: str | None = Field(
        None,
        min_length=1,
        description="A record that is not a JSON object becomes a document with this field only; without it, such a "
        "record is a dead letter.",
    )
    index_template: IndexTemplate | None = Field(None, description="Index template to put into the cluster at start.")
    mappings: dict[str, Any] = Field(
        default_factory=dict, description="Mappings of new indexes; holdfast puts them into an index template."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of new indexes; holdfast puts them into an index template."
    )
    max_bulk_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "10MB", validate_default=True, description="Maximum size of a request that has more than one document."
    )
    max_bulk_documents: PositiveCount = Field(5000, description="Maximum number of documents in a request.")
    gzip: bool = Field(False, description="Compress requests; useful if the network is slow.")
    concurrency: PositiveCount = Field(
        4, description="Maximum number of requests that a task has in flight; fewer while the cluster is overloaded."
    )
    slow_after: Annotated[Duration, Field(gt=0)] = Field(
        "10s",
        validate_default=True,
        description="A response that takes longer halves the number of requests in flight.",
    )
    request_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "60s", validate_default=True, description="How long to wait for the response to a request."
    )
    patience: Annotated[Duration, Field(gt=0)] = Field(
        "30s",
        validate_default=True,
        description="How long a task retries when nothing succeeds; then the node waits and reads the batch again. The "
        "outage is reported after 10 seconds.",
    )
    dead_letters: DeadLetterOptions = Field(
        default_factory=DeadLetterOptions, description="Where records that the index refuses are kept."
    )

    def owned_roots(self) -> dict[tuple[str, ...], str]:
        letters = self.dead_letters
        return {} if letters.file is None else {("dead_letters", "file"): root_identity(letters.file, letters.s3)}

    @property
    def acts(self) -> str:
        """The action, or its template."""
        return self.action or ("create" if self.data_stream else "index")

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        ways = [self.username is not None, self.api_key is not None, self.aws is not None]
        if sum(ways) > 1:
            raise PydanticCustomError(PLAIN_ERROR, "only one of username, api_key and aws is possible")
        if (self.username is None) != (self.password is None):
            raise PydanticCustomError(PLAIN_ERROR, "username and password are needed together")
        return self

    @model_validator(mode="after")
    def _login_is_encrypted(self) -> Self:
        plain = [url for url in map(urlsplit, self.hosts) if url.scheme == "http" and not is_local(url.hostname or "")]
        logs_in = self.password is not None or self.api_key is not None
        if plain and logs_in and not self.tls.allow_http_login:
            raise PydanticCustomError(
                PLAIN_ERROR,
                "the login would be sent over http, where others can read it; write https:// in hosts, "
                "or set tls.allow_http_login: true",
            )
        return self

    @property
    def stages_indexes(self) -> bool:
        """Whether the sink is for reindex runs."""
        return self.mode == "staged"

    @model_validator(mode="after")
    def _mode_has_its_settings(self) -> Self:
        if self.mode == "direct" and self.index is None:
            raise PydanticCustomError(PLAIN_ERROR, "index is missing: the index, or a template of its name")
        unfit = sorted(self.model_fields_set & set(DIRECT_ONLY)) if self.mode == "staged" else []
        if unfit:
            reason = f"{unfit[0]} is not possible with mode: staged, where the rows and the entities decide it"
            raise PydanticCustomError(PLAIN_ERROR, reason)
        return self

    @model_validator(mode="after")
    def _names_are_allowed(self) -> Self:
        if self.index is None:
            return self
        try:
            IndexName(Template(self.index), self.allowed_indexes)
        except ValueError as error:
            raise PydanticCustomError(PLAIN_ERROR, "index: {reason}", {"reason": str(error)}) from None
        return self

    @model_validator(mode="after")
    def _actions_fit(self) -> Self:
        if self.data_stream and self.acts != "create":
            raise PydanticCustomError(PLAIN_ERROR, "a data stream accepts only the action create")
        if self.version is not None and self.acts in {"create", "update", "upsert"}:
            raise PydanticCustomError(PLAIN_ERROR, "versions are possible only with the actions index and delete")
        if self.document_id == "server" and self.acts not in {"index", "create"}:
            raise PydanticCustomError(
                PLAIN_ERROR, "ids assigned by the server are possible only with the actions index and create"
            )
        if self.index_template is not None and (self.mappings or self.settings):
            raise PydanticCustomError(PLAIN_ERROR, "with index_template, put mappings and settings into its body")
        return self
