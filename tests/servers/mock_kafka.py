"""A mock broker of librdkafka, in this process, which responds as a test wants: a real one does so only by chance."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import cimpl

OFFSET_FETCH = 9
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
_PRODUCER = 0


@contextmanager
def mock_broker(topic: str, request: int, errors: Sequence[int]) -> Iterator[str]:
    """The address of a broker that has the topic, and responds to the first requests of that kind with these errors."""
    client = ctypes.CDLL(cimpl.__file__)
    for function in (client.rd_kafka_conf_new, client.rd_kafka_new, client.rd_kafka_mock_cluster_new):
        function.restype = ctypes.c_void_p
    client.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    configuration = ctypes.c_void_p(client.rd_kafka_conf_new())
    handle = ctypes.c_void_p(client.rd_kafka_new(_PRODUCER, configuration, None, ctypes.c_size_t(0)))
    cluster = ctypes.c_void_p(client.rd_kafka_mock_cluster_new(handle, 1))
    try:
        client.rd_kafka_mock_topic_create(cluster, topic.encode(), 1, 1)
        codes = (ctypes.c_int * len(errors))(*errors)
        client.rd_kafka_mock_push_request_errors_array(
            cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), codes
        )
        yield client.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        client.rd_kafka_mock_cluster_destroy(cluster)
        client.rd_kafka_destroy(handle)
