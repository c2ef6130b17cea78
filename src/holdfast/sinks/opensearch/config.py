"""Settings of the sink `opensearch`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Duration, Options, PositiveCount, Secret
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.sinks.opensearch.templates import IndexName, Template, is_index_name

ACTIONS = ("index", "create", "update", "upsert", "delete")
WORDS = ("origin", "server")


def _checked_host(url: str) -> str:
    # A password in an address would be shown with it.
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/-]*)?", url):
        raise PydanticCustomError(VALUE_ERROR, "is no address of a cluster; write https://host:9200")
    return url.rstrip("/")


def _checked_template(text: str) -> str:
    try:
        Template(text)
    except ValueError as error:
        raise PydanticCustomError(PLAIN_ERROR, "{reason}", {"reason": str(error)}) from None
    return text


def _checked_id(text: str) -> str:
    if text in WORDS:
        return text
    if Template(_checked_template(text)).constant is not None:
        raise PydanticCustomError(VALUE_ERROR, "is neither origin, server, nor a template such as {id}")
    return text


def _checked_action(text: str) -> str:
    only = Template(_checked_template(text)).constant
    if only is not None and only not in ACTIONS:
        raise PydanticCustomError(VALUE_ERROR, f"is no action; there are {', '.join(ACTIONS)}")
    return text


def _checked_index(name: str) -> str:
    if not is_index_name(name):
        raise PydanticCustomError(VALUE_ERROR, "is no index name: lower case letters, digits, '.', '_' and '-'")
    return name


TemplateText = Annotated[str, Field(min_length=1), AfterValidator(_checked_template)]


class AwsOptions(Options):
    """Sign requests as Amazon's services want it. Without keys: environment, profile, role of the machine."""

    region: str = Field(min_length=1, description="Region of the cluster.")
    service: Literal["es", "aoss"] = Field("es", description="`es` for a domain, `aoss` for a serverless collection.")
    access_key_id: Secret | None = Field(None, description="Key to sign with; better leave it to the machine's role.")
    secret_access_key: Secret | None = Field(None, description="Secret that belongs to the key.")
    session_token: Secret | None = Field(None, description="Token of temporary keys.")


class TlsOptions(Options):
    """How https is checked."""

    ca_file: str | None = Field(
        None, description="Certificates of your own authority (PEM), read by the node; the system's unless given."
    )
    client_cert: str | None = Field(None, description="Certificate to show (PEM); a path on every executor.")
    client_key: str | None = Field(None, description="Key of the certificate (PEM); a path on every executor.")
    verify: bool = Field(True, description="Check the server's certificate. Without it anybody can listen.")


class IndexTemplate(Options):
    """An index template as the server knows it, put there at start."""

    name: str = Field(min_length=1, description="Name of the template in the cluster.")
    body: dict[str, Any] = Field(description="The template: index_patterns, template, data_stream and so on.")


class DeadLetterOptions(Options):
    """Where records go that the index refuses: to a file or to an index."""

    file: Root | None = Field(
        None,
        description="Folder for files of dead letters, or `s3://bucket/prefix`. It belongs to this sink of this "
        "pipeline alone.",
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a folder there.")
    index: Annotated[str, AfterValidator(_checked_index)] | None = Field(
        None, description="Index for dead letters; `<pipeline>-deadletters` unless given."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.file is not None and self.index is not None:
            raise PydanticCustomError(PLAIN_ERROR, "dead letters go to a file or to an index, not to both")
        if self.file is not None:
            check_together(self.file, self.s3)
        return self


class OpenSearchConfig(Options):
    """Which cluster, which index, and what a record becomes there."""

    hosts: Annotated[tuple[Annotated[str, AfterValidator(_checked_host)], ...], Field(min_length=1)] = Field(
        description="Addresses of the cluster's nodes, such as `https://search:9200`."
    )
    username: str | None = Field(None, description="Name to log in with.")
    password: Secret | None = Field(None, description="Password that belongs to the name.")
    api_key: Secret | None = Field(None, description="API key to log in with, instead of name and password.")
    aws: AwsOptions | None = Field(None, description="Sign requests for Amazon's services instead of logging in.")
    tls: TlsOptions = Field(default_factory=TlsOptions, description="How https is checked.")
    index: TemplateText = Field(
        description="Index, data stream or alias: a name, or a template such as `logs-{tenant}-{@timestamp:%Y.%m.%d}`."
    )
    allowed_indexes: tuple[str, ...] = Field(
        (),
        description="Patterns of indexes that records may name, such as `logs-*`. Needed where the index begins with a "
        "field; else names must begin as the template does.",
    )
    data_stream: bool = Field(False, description="The index is a data stream; records are created in it.")
    action: Annotated[str, AfterValidator(_checked_action)] | None = Field(
        None,
        description="index, create, update, upsert or delete, or a template such as `{op}` that gives one of these; "
        "index unless given, create in a data stream.",
    )
    document_id: Annotated[str, AfterValidator(_checked_id)] = Field(
        "origin",
        description="origin: made from where the record comes from, so that a batch written twice is there once. "
        "A template such as `{id}` or `{user.id}-{day}`. server: the server gives ids, and what is written twice is "
        "there twice.",
    )
    routing: TemplateText | None = Field(None, description="Routing of documents, as a template such as `{tenant}`.")
    version: TemplateText | None = Field(
        None,
        description="External version of documents, as a template such as `{updated_at_ms}`, or `{_item}` for the "
        "record's number in its partition. An older version never replaces a newer one.",
    )
    version_type: Literal["external", "external_gte"] = Field(
        "external", description="Whether a version that is there already may be written again (external_gte)."
    )
    pipeline: str | None = Field(None, min_length=1, description="Ingest pipeline that documents go through.")
    text_field: str | None = Field(
        None,
        min_length=1,
        description="A record that is no JSON object becomes a document with this one field; a dead letter unless "
        "given.",
    )
    index_template: IndexTemplate | None = Field(None, description="Index template to put into the cluster at start.")
    mappings: dict[str, Any] = Field(
        default_factory=dict, description="Mappings of new indexes; put into an index template of holdfast's own."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of new indexes; put into an index template of holdfast's own."
    )
    max_bulk_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "10MB", validate_default=True, description="A request holds at most so many bytes, if more than one document."
    )
    max_bulk_documents: PositiveCount = Field(5000, description="A request holds at most so many documents.")
    gzip: bool = Field(False, description="Compress requests; pays where the network is slow.")
    concurrency: PositiveCount = Field(
        4, description="Requests that one task has under way at most; fewer while the cluster has too much to do."
    )
    slow_after: Annotated[Duration, Field(gt=0)] = Field(
        "10s", validate_default=True, description="An answer that takes longer halves the number of requests."
    )
    request_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "60s", validate_default=True, description="How long to wait for the answer to one request."
    )
    patience: Annotated[Duration, Field(gt=0)] = Field(
        "30s",
        validate_default=True,
        description="How long a task goes on trying when nothing succeeds; then the node waits and reads the batch "
        "again. That nothing succeeds is told after 10 seconds.",
    )
    dead_letters: DeadLetterOptions = Field(
        default_factory=DeadLetterOptions, description="Where records go that the index refuses."
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
            raise PydanticCustomError(PLAIN_ERROR, "username and password are only good together")
        return self

    @model_validator(mode="after")
    def _names_are_allowed(self) -> Self:
        try:
            IndexName(Template(self.index), self.allowed_indexes)
        except ValueError as error:
            raise PydanticCustomError(PLAIN_ERROR, "index: {reason}", {"reason": str(error)}) from None
        return self

    @model_validator(mode="after")
    def _actions_fit(self) -> Self:
        if self.data_stream and self.acts != "create":
            raise PydanticCustomError(PLAIN_ERROR, "a data stream takes the action create only")
        if self.version is not None and self.acts in {"create", "update", "upsert"}:
            raise PydanticCustomError(PLAIN_ERROR, "versions are for the actions index and delete")
        if self.document_id == "server" and self.acts not in {"index", "create"}:
            raise PydanticCustomError(PLAIN_ERROR, "ids by the server are for the actions index and create")
        if self.index_template is not None and (self.mappings or self.settings):
            raise PydanticCustomError(PLAIN_ERROR, "mappings and settings belong into index_template.body")
        return self
