"""Names that settings have elsewhere, above all in Data Prepper, and what they are called here.

A path is written with dots; `*` stands for the name of a pipeline or an entity, or for an entry of a list.
"""

from __future__ import annotations

from collections.abc import Sequence

from yaml.nodes import MappingNode, Node, SequenceNode

_RENAMED = {
    "pipelines.*.sink": "sinks",
    "pipelines.*.processor": "processors",
    "pipelines.*.prepper": "processors",
    "pipelines.*.route": "routes",
    "source.s3": "objects",
    "source.objects.aws": "s3",
    "source.kafka.group_id": "group",
    "source.kafka.consumer_group": "group",
    "source.kafka.brokers": "bootstrap_servers",
    "source.kafka.auto_offset_reset": "start",
    "source.kafka.starting_offsets": "start",
    "source.kafka.properties": "client_properties",
    "source.kafka.upload.max_size": "max_bytes",
    "source.objects.path": "folder",
    "source.objects.scan.every": "interval",
    "source.database.tables": "entities",
    "source.database.entities.*.primary_key": "key",
    "source.database.entities.*.columns": "fields",
    "source.kafka.encryption": "security",
    "source.kafka.authentication": "security",
    "processors.*.grok.grok_when": "when",
    "processors.*.date.date_when": "when",
    "processors.*.key_value.key_value_when": "when",
    "processors.*.parse_json.parse_when": "when",
    "processors.*.grok.tags_on_match_failure": "tags_on_failure",
    "sinks.*.opensearch.enable_request_compression": "gzip",
    "sinks.*.opensearch.actions": "action",
    "sinks.*.opensearch.dlq": "dead_letters",
    "sinks.*.opensearch.socket_timeout": "request_timeout",
    "sinks.*.elasticsearch": "opensearch",
    "sinks.*.files.path": "root",
    "sinks.*.files.folder": "root",
    "sinks.*.function.event_timeout": "timeout",
    "sinks.*.function.eventTimeout": "timeout",
    "sinks.*.function.explicit_ack_mode": "ack",
    "source_coordination.store.sqlite.url": "path",
    "source_coordination.store.sqlite.file": "path",
    "source_coordination.store.object.path": "root",
    "source_coordination.store.object.url": "root",
}
_NO_BUFFER = "is not needed here: records wait in the source, and 'batch' limits what is read at a time"
_ONE_NODE_READS = "is not needed here: nodes share partitions through the store"
_IN_SQL = "does not exist here; use 'add_entries' with 'value_expression', or 'sql'"
_EXTERNAL_SOURCE = "does not exist here; put the records into Kafka, a stream or objects, and read these"
_OF_THE_NODE = "is 'session_timeout' of 'node' here: a node that is silent for that long loses its leases"
_TRIGGER = "does not exist here: the source is the trigger; `holdfast convert nuclio` converts a function.yaml"
_MESSAGES = {
    "version": "is not needed here; remove it",
    "pipeline_configurations": "does not exist here; secrets are references, such as ${env:NAME} or ${file:PATH}",
    "extensions": "does not exist here; secrets are references, such as ${env:NAME} or ${file:PATH}",
    "peer_forwarder": _ONE_NODE_READS,
    "ssl": "does not exist here: holdfast has no server of its own",
    "metric_registries": "does not exist here; 'metrics_port' of 'node' serves metrics for Prometheus",
    "pipelines.*.workers": "is not needed here: Spark's tasks do the work; see 'master' of 'spark', such as local[4]",
    "pipelines.*.delay": _NO_BUFFER,
    "pipelines.*.buffer": _NO_BUFFER,
    "web": "does not exist here; `holdfast web --help` lists the options of the dashboard",
    "dashboard": "does not exist here; `holdfast web --help` lists the options of the dashboard",
    "metrics": "does not exist here; 'metrics_port' of 'node' serves metrics for Prometheus",
    "node.log_level": "does not exist here; `holdfast run --verbose` logs every event, `--quiet` only warnings",
    "spark.memory": "does not exist here; write 'conf: {spark.driver.memory: 4g}', or 'worker_memory' for Python",
    "alerts.lag": "does not exist here; write 'lag_seconds' with a time, or 'lag_records' with a number",
    "source_coordination.lease_timeout": _OF_THE_NODE,
    "source_coordination.session_timeout": _OF_THE_NODE,
    "source_coordination.store.object.bucket": "is in 'root' here; write 'root: s3://BUCKET/PREFIX'",
    "source.file": "is called 'objects' here; write 'objects: {folder: PATH}'",
    "source.pipeline": "does not exist here: a pipeline is not read by another one; use 'routes' and several sinks",
    "source.http": _EXTERNAL_SOURCE,
    "source.otel_logs_source": _EXTERNAL_SOURCE,
    "source.otel_trace_source": _EXTERNAL_SOURCE,
    "source.otel_metrics_source": _EXTERNAL_SOURCE,
    "source.rds": "is called 'database' here",
    "source.objects.acknowledgments": "is not needed here: progress always waits until all sinks have the records",
    "source.objects.notification_type": "does not exist here; buckets are listed, see 'scan'",
    "source.objects.sqs": "does not exist here; buckets are listed, write 'scan: follow'",
    "source.objects.s3_select": "does not exist here; use the processors 'filter' and 'sql'",
    "source.objects.workers": "is not needed here: Spark's tasks are the workers",
    "source.objects.records_to_accumulate": _NO_BUFFER,
    "source.objects.buffer_timeout": _NO_BUFFER,
    "source.objects.scan.buckets": "is beside 'scan' here, not in it",
    "source.objects.scan.scheduling": "is not needed here; write 'scan: {interval: 1h, count: 2}', or 'scan: follow'",
    "source.objects.scan.folder_partitions": "is called 'partition_by: prefix' here, beside 'scan'",
    "source.objects.scan.start_time": "is beside 'scan' here, not in it",
    "source.objects.scan.end_time": "is beside 'scan' here, not in it",
    "source.objects.scan.range": "is beside 'scan' here, not in it",
    "source.objects.buckets.*.filter": "is not needed here; 'include_prefix' and 'exclude_suffix' are beside 'bucket'",
    "source.objects.buckets.*.name": "is called 'bucket' here",
    "source.objects.buckets.*.suffix": "does not exist here; write 'include: [\"**/*.json\"]'",
    "source.objects.suffix": "does not exist here; write 'include: [\"**/*.json\"]'",
    "source.objects.scan.follow": "is a word here; write 'scan: follow', and 'interval: 30s' beside it",
    "source.stream.shards": "is not needed here; `holdfast stream create NAME --shards 4` makes a stream",
    "source.kafka.acknowledgments": "is not needed here: progress always waits until all sinks have the records",
    "source.kafka.consumer_strategy": _ONE_NODE_READS,
    "processors.*.convert_entry_type": _IN_SQL,
    "processors.*.copy_values": _IN_SQL,
    "processors.*.lowercase_string": _IN_SQL,
    "processors.*.uppercase_string": _IN_SQL,
    "processors.*.trim_string": _IN_SQL,
    "processors.*.split_string": _IN_SQL,
    "processors.*.string_converter": _IN_SQL,
    "processors.*.substitute_string": _IN_SQL,
    "processors.*.truncate": _IN_SQL,
    "processors.*.select_entries": "does not exist here; use 'sql' with 'select'",
    "processors.*.csv": "does not exist here; 'codec: csv' of the source 'objects' reads such files",
    "processors.*.delete_entries.delete_when": "does not exist here: a column is removed from all rows",
    "processors.*.rename_keys.entries.*.rename_when": "does not exist here: a column is renamed in all rows",
    "processors.*.add_entries.entries.*.format": "is called 'value_expression' here, in Spark SQL: concat(a, ' ', b)",
    "processors.*.parse_json.pointer": "does not exist here; name the wanted columns in 'schema'",
    "processors.*.grok.break_on_match": "is not needed here: the first pattern that matches is used",
    "sinks.*.s3": "is called 'files' here; write 'files: {root: s3://BUCKET/PREFIX}'",
    "sinks.*.file": "is called 'files' here; write 'files: {root: FOLDER}'",
    "sinks.*.stdout": "does not exist here; write 'files: {root: FOLDER, format: jsonl}'",
    "sinks.*.pipeline": "does not exist here: a pipeline is not read by another one; use 'routes' and several sinks",
    "sinks.*.files.compression": "belongs to the format here; write 'format: {text: {compression: gzip}}'",
    "sinks.*.files.partition_by": "does not exist here; the processor 'parse' puts records into folders by their time",
    "sinks.*.files.hive": "is in an entry of 'hooks' of 'finalize' here",
    "sinks.*.function.triggers": _TRIGGER,
    "sinks.*.function.trigger": _TRIGGER,
    "sinks.*.function.replicas": "belongs to the pipeline here; write it beside 'sinks'",
    "sinks.*.opensearch.id": "is called 'document_id' here; write 'document_id: \"{FIELD}\"'",
    "sinks.*.opensearch.index_type": "is not needed here; see 'index', 'data_stream' and 'index_template'",
    "sinks.*.opensearch.document_id_field": "is called 'document_id' here; write 'document_id: \"{FIELD}\"'",
    "sinks.*.opensearch.routing_field": "is called 'routing' here; write 'routing: \"{FIELD}\"'",
    "sinks.*.opensearch.bulk_size": "is called 'max_bulk_bytes' here; write 'max_bulk_bytes: 5MiB'",
    "sinks.*.opensearch.dlq_file": "is called 'dead_letters' here; write 'dead_letters: {file: FOLDER}'",
    "sinks.*.opensearch.insecure": "is called 'tls' here; write 'tls: {verify: false}'",
    "sinks.*.opensearch.cert": "is called 'tls' here; write 'tls: {ca_file: PATH}'",
    "sinks.*.opensearch.aws_sigv4": "is called 'aws' here; write 'aws: {region: REGION}'",
    "sinks.*.opensearch.aws_region": "is called 'aws' here; write 'aws: {region: REGION}'",
    "sinks.*.opensearch.aws.serverless": "is called 'service' here; write 'service: aoss'",
    "sinks.*.opensearch.max_retries": "is not needed here: it retries until the cluster is back; see 'patience'",
    "sinks.*.opensearch.flush_timeout": _NO_BUFFER,
    "sinks.*.opensearch.template_file": "is not needed here; see 'index_template', 'mappings' and 'settings'",
    "sinks.*.opensearch.template_content": "is not needed here; see 'index_template', 'mappings' and 'settings'",
    "sinks.*.opensearch.number_of_shards": "is in 'settings' here; write 'settings: {number_of_shards: 3}'",
    "sinks.*.opensearch.number_of_replicas": "is in 'settings' here; write 'settings: {number_of_replicas: 1}'",
    "sinks.*.opensearch.disable_authentication": "is not needed here; without 'username' nothing is sent",
}
_LISTS_AND_MAPPINGS = {
    "source.objects.buckets.*.bucket": "'bucket' is the bucket's name here; 'include_prefix' and 'exclude_suffix', "
    "which Data Prepper has in 'filter', are beside it",
    "source.kafka.topics.*": "an entry of 'topics' is the topic's name here",
    "source.kafka.bootstrap_servers": "write the brokers as one text here, separated by commas",
}


def new_name(path: Sequence[str | int]) -> str | None:
    """Return what the key at this path is called here; None if it is not a known name."""
    return _of(_RENAMED, path)


def message_for(path: Sequence[str | int], node: Node) -> str | None:
    """Return the message for a key that is a name from elsewhere; None if it is not. `node` is the key's value."""
    if name := new_name(path):
        return f"{path[-1]!r} is called {name!r} here"
    if message := _of(_MESSAGES, path):
        return f"{path[-1]!r} {message}"
    if len(path) == 1 and _is_pipeline(node):
        return f"pipelines are below 'pipelines:' here; put {path[0]!r} below it, indented"
    return None


def message_for_shape(path: Sequence[str | int], node: Node) -> str | None:
    """Return the message for a list or mapping where a text is expected; None if it is not like Data Prepper's."""
    return _of(_LISTS_AND_MAPPINGS, path) if isinstance(node, MappingNode | SequenceNode) else None


def _is_pipeline(node: Node) -> bool:
    if not isinstance(node, MappingNode):
        return False
    keys = {key.value for key, _ in node.value}
    return "source" in keys and not keys.isdisjoint({"sink", "sinks"})


def _of(table: dict[str, str], path: Sequence[str | int]) -> str | None:
    steps = ["*" if isinstance(step, int) else step for step in path]
    if len(steps) > 1 and steps[0] == "pipelines":
        steps[1] = "*"
    if "entities" in steps[:-2]:
        steps[steps.index("entities") + 1] = "*"
    whole = ".".join(steps)
    return table.get(whole) or table.get(whole.removeprefix("pipelines.*."))
