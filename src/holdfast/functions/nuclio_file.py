"""Nuclio's function.yaml as a file of holdfast; comments name what could not be converted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.config.units import parse_duration
from holdfast.convert.converted_file import ConvertedFile
from holdfast.errors import UsageError
from holdfast.functions.nuclio_trigger import ANNOTATIONS, stream_address
from holdfast.functions.settings import FunctionConfig

_SAME_NAME = ("seekTo", "readBatchSize", "pollingIntervalMs", "workerAllocationMode", "explicitAckMode")
_DURATIONS = ("sessionTimeout", "heartbeatInterval", "sequenceNumberCommitInterval")
_IGNORED = ("workerAvailabilityTimeoutMilliseconds", "partitions", "username", "workerAllocatorName")
_STREAMS = {"v3ioStream", "v3io-stream", "kafka", "kafka-cluster", "kinesis"}
_KEYS = ("accessKeyID", "secretAccessKey")
# Read elsewhere, or without meaning here.
_SPEC = {
    "handler",
    "runtime",
    "env",
    "triggers",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "eventTimeout",
    "description",
}
_TRIGGER = {"kind", "name", "class", "url", "attributes", "maxWorkers", "numWorkers", "password", "batch", "mode"}


@dataclass(slots=True)
class Conversion:
    """A function of Nuclio on its way into a file of holdfast."""

    name: str
    spec: Mapping[str, Any]
    annotations: Mapping[str, Any]
    made: ConvertedFile

    def run(self) -> None:
        triggers = {name: _mapping(trigger) for name, trigger in _mapping(self.spec.get("triggers")).items()}
        streams = {name: trigger for name, trigger in triggers.items() if trigger.get("kind") in _STREAMS}
        for name in triggers.keys() - streams.keys():
            self.made.note(f"spec.triggers.{name}", f"not converted: {triggers[name].get('kind')} is not a stream")
        for name, trigger in streams.items():
            pipeline = _plain(self.name if len(streams) == 1 else f"{self.name}-{name}").replace(".", "-")
            self.made.pipelines[pipeline] = self._pipeline(f"spec.triggers.{name}", pipeline, trigger)
        self._code()
        for name in sorted(self.spec.keys() - _SPEC):
            self.made.note(f"spec.{name}", "not converted: it belongs to the way in which Nuclio deploys")
        for name in sorted(self.annotations.keys() - ANNOTATIONS.keys()):
            self.made.note(f"metadata.annotations.{name}", "not converted")

    def _code(self) -> None:
        """Note where to put source code that is in the file itself, as for a function that was edited online."""
        if "functionSourceCode" in _mapping(self.spec.get("build")):
            module = str(self.spec["handler"]).partition(":")[0].removesuffix(".py")
            self.made.note(
                "spec.build.functionSourceCode", f"decode it (base64) and save it as {module}.py beside this file"
            )

    def _pipeline(self, path: str, pipeline: str, trigger: Mapping[str, Any]) -> dict[str, Any]:
        function = self._function(path, pipeline, trigger)
        converted: dict[str, Any] = {"source": self._source(path, trigger), "sinks": [{"function": function}]}
        replicas = self.spec.get("replicas")
        if replicas is None and self.spec.get("minReplicas") == self.spec.get("maxReplicas"):
            replicas = self.spec.get("maxReplicas")
        if replicas is not None:
            converted["replicas"] = replicas
        elif "maxReplicas" in self.spec:
            self.made.note("spec.maxReplicas", "not needed: shards are shared among the nodes that run")
        try:
            FunctionConfig.model_validate(function)
        except ValidationError as error:
            for problem in error.errors():
                self.made.note(".".join(map(str, ("function", *problem["loc"]))), f"must be changed: {problem['msg']}")
        function["dead_letters"] = {"file": f"./dead-letters/{pipeline}"}
        self.made.note("function.dead_letters", "records that fail are kept here; Nuclio lets them go")
        return converted

    def _source(self, path: str, trigger: Mapping[str, Any]) -> dict[str, Any]:
        attributes, kind = _mapping(trigger.get("attributes")), trigger["kind"]
        if kind in {"kafka", "kafka-cluster"}:
            brokers = attributes.get("brokers") or [trigger.get("url", "")]
            source = {"bootstrap_servers": ",".join(map(str, brokers)), "topics": list(attributes.get("topics", []))}
            return {"kafka": source | ({"group": attributes["consumerGroup"]} if "consumerGroup" in attributes else {})}
        if kind == "kinesis":
            return {"kinesis": self._kinesis(path, attributes)}
        try:
            stream = stream_address(trigger.get("url")).stream
        except ValueError:
            stream = f"{attributes.get('containerName', '')}/{str(attributes.get('streamPath', '')).strip('/')}"
        self.made.note(f"{path}.url", "the records of this stream must be put into the stream that source names")
        return {"stream": {"name": _plain(stream.strip("/").replace("/", "."))}}

    def _kinesis(self, path: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        for name in [name for name in _KEYS if name in attributes]:
            self.made.note(f"{path}.attributes.{name}", "not copied: nodes and workers use the usual chain of AWS")
        if "shards" in attributes:
            self.made.note(f"{path}.attributes.shards", "not needed: all shards are read, also those of a split")
        return {"stream": str(attributes.get("streamName", "")), "region": str(attributes.get("regionName", ""))}

    def _function(self, path: str, pipeline: str, trigger: Mapping[str, Any]) -> dict[str, Any]:
        attributes = _mapping(trigger.get("attributes"))
        function: dict[str, Any] = {"handler": self.spec.get("handler", "")}
        if environment := self._environment():
            function["environment"] = environment
        if trigger["kind"].startswith("v3io") and "url" in trigger:
            function["url"] = str(trigger["url"]).strip()
        workers = trigger.get("numWorkers", trigger.get("maxWorkers"))
        function |= {} if workers is None else {"maxWorkers": workers}
        annotations = {
            ANNOTATIONS[name]: self.annotations[name] for name in self.annotations.keys() & ANNOTATIONS.keys()
        }
        function |= annotations
        given = {**trigger, **attributes}
        if "initialOffset" in given:
            given.setdefault("seekTo", given["initialOffset"])
        function |= {name: given[name] for name in _SAME_NAME if name in given}
        for name in [name for name in _DURATIONS if name in given]:
            self._duration(function, name, given[name], f"{path}.attributes.{name}")
        if "eventTimeout" in self.spec:
            self._duration(function, "timeout", self.spec["eventTimeout"], "spec.eventTimeout")
        batch = _mapping(trigger.get("batch"))
        if batch.get("mode") == "enable":
            function["batch"] = {"size": batch.get("batchSize", 10), "timeout": batch.get("timeout", "1s")}
        if trigger.get("password"):
            # The key itself is never copied.
            function["password"] = f"${{env:{re.sub(r'[^A-Z0-9]', '_', pipeline.upper())}_PASSWORD}}"
            self.made.note(f"{path}.password", f"put the access key into the environment, as {function['password']}")
        self._rest(path, given, trigger)
        return function

    def _rest(self, path: str, given: Mapping[str, Any], trigger: Mapping[str, Any]) -> None:
        for name in [name for name in _IGNORED if name in given]:
            self.made.note(f"{path}.{name}", "ignored: Nuclio has deprecated it")
        sources = {"containerName", "streamPath", "consumerGroup", "brokers", "topics", "initialOffset"}
        if trigger["kind"] == "kinesis":
            sources |= {"streamName", "regionName", "shards", *_KEYS}
        done = {*_SAME_NAME, *_DURATIONS, *_IGNORED, *_TRIGGER, *sources}
        for name in sorted(given.keys() - done):
            self.made.note(f"{path}.{name if name in trigger else f'attributes.{name}'}", "not converted")

    def _environment(self) -> dict[str, str]:
        environment: dict[str, str] = {}
        for variable in self.spec.get("env") or []:
            name = str(variable.get("name"))
            if "value" in variable:
                # A ${ of the value itself must not be read as a reference.
                environment[name] = str(variable["value"]).replace("${", "$${")
            else:
                environment[name] = f"${{env:{name}}}"
                self.made.note(f"spec.env.{name}", "its value comes from Kubernetes; set it for the node")
        return environment

    def _duration(self, function: dict[str, Any], name: str, value: Any, path: str) -> None:
        try:
            parse_duration(str(value))
            function[name] = str(value)
        except ValueError:
            self.made.note(path, f"not converted: {value!r} is not a duration")


def convert_nuclio(text: str, file_name: str) -> str:
    """Return a file of holdfast for a function.yaml of Nuclio. Raises `UsageError` if the text is not one."""
    conversion = _read(text, file_name)
    conversion.run()
    if not conversion.made.pipelines:
        raise UsageError(
            f"{file_name} has no trigger for a stream; a pipeline can be made from Kafka, Kinesis and v3io streams only"
        )
    return conversion.made.text()


def _read(text: str, file_name: str) -> Conversion:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{file_name} is not YAML: {error}") from None
    spec = _mapping(_mapping(document).get("spec"))
    if not spec.get("handler"):
        raise UsageError(f"{file_name} is not a function of Nuclio: it has no spec.handler")
    metadata = _mapping(_mapping(document).get("metadata"))
    made = ConvertedFile(file_name)
    return Conversion(str(metadata.get("name") or "function"), spec, _mapping(metadata.get("annotations")), made)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-") or "function"
