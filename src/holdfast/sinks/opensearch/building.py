"""Settings become the sink's parts."""

from __future__ import annotations

from pathlib import Path

from holdfast.buckets.root import bucket_of
from holdfast.errors import UsageError
from holdfast.sinks.opensearch.access import Access, AwsAccess, Tls
from holdfast.sinks.opensearch.bulk_request import Target
from holdfast.sinks.opensearch.config import WORDS, OpenSearchConfig
from holdfast.sinks.opensearch.dead_letter_index import LettersToIndex
from holdfast.sinks.opensearch.documents import Form
from holdfast.sinks.opensearch.index_setup import Setup
from holdfast.sinks.opensearch.indexes import IndexName, index_name_of
from holdfast.sinks.opensearch.sink import OpenSearchSink
from holdfast.sinks.opensearch.staging import OpenSearchStager, Pace
from holdfast.sinks.opensearch.templates import Template


def sink_of(name: str, config: OpenSearchConfig) -> OpenSearchSink:
    """The sink of that name, not yet connected."""
    access, letters = access_of(config), config.dead_letters
    bucket = None if letters.file is None else bucket_of(letters.file, letters.s3)
    target = Target(access, Template(config.index).constant, config.pipeline, config.version is not None)
    kept = LettersToIndex(name, letters.index) if bucket is None else bucket
    stager = OpenSearchStager(target, form_of(config), kept, _pace_of(config))
    return OpenSearchSink(name, stager, _setup_of(name, config, access), bucket)


def access_of(config: OpenSearchConfig) -> Access:
    """How the cluster is reached. Raises `UsageError` for a file that cannot be read."""
    tls, aws = config.tls, config.aws
    try:
        authority = None if tls.ca_file is None else Path(tls.ca_file).read_text()
    except OSError as error:
        raise UsageError(f"tls.ca_file: cannot read {tls.ca_file}: {error.strerror}") from error
    signed = None
    if aws is not None:
        signed = AwsAccess(aws.region, aws.service, aws.access_key_id, aws.secret_access_key, aws.session_token)
    return Access(
        config.hosts,
        config.username,
        config.password,
        config.api_key,
        signed,
        Tls(authority, tls.client_cert, tls.client_key, tls.verify),
        config.request_timeout,
        config.gzip,
    )


def form_of(config: OpenSearchConfig) -> Form:
    """What a record becomes."""
    identity = config.document_id
    return Form(
        _index_of(config),
        Template(config.acts),
        identity if identity in WORDS else Template(identity),
        None if config.routing is None else Template(config.routing),
        None if config.version is None else Template(config.version),
        config.version_type,
        config.text_field,
    )


def _index_of(config: OpenSearchConfig) -> IndexName:
    return IndexName(Template(config.index), config.allowed_indexes)


def _pace_of(config: OpenSearchConfig) -> Pace:
    return Pace(
        config.max_bulk_bytes, config.max_bulk_documents, config.concurrency, config.slow_after, config.patience
    )


def _setup_of(name: str, config: OpenSearchConfig, access: Access) -> Setup:
    given = config.index_template
    return Setup(
        access,
        _index_of(config),
        index_name_of(f"holdfast-{config.index}-{name}") if given is None else given.name,
        None if given is None else given.body,
        config.mappings,
        config.settings,
        config.data_stream,
        config.pipeline,
        config.version is not None and Template(config.acts).constant in {None, "delete"},
    )
