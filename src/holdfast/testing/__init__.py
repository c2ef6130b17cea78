"""Behaviour suites for plugins, and fakes: public, for people who write plugins.

`docs/testing.md` says how a suite is used. Register the assertions before the first import, in `conftest.py`:

    pytest.register_assert_rewrite("holdfast.testing")
"""

from holdfast import lazy_names

_PUBLIC = {
    "holdfast.testing.buckets": "BucketBehaviour",
    "holdfast.testing.flows": "HandEngine MemoryBucket NumbersSource",
    "holdfast.testing.formats": "FormatBehaviour",
    "holdfast.testing.functions": "RecordingContext call_handler stream_event",
    "holdfast.testing.processing": "Processed run_processor spark_session",
    "holdfast.testing.processors": "ProcessorBehaviour",
    "holdfast.testing.proxy": "TcpProxy",
    "holdfast.testing.sinks": "SinkBehaviour",
    "holdfast.testing.sources": "SourceBehaviour",
    "holdfast.testing.store_outages": "OutageBehaviour",
    "holdfast.testing.stores": "StoreBehaviour StoreMachine",
    "holdfast.testing.stream_setting": "SampleRecord",
    "holdfast.testing.streams": "StreamBehaviour",
    "holdfast.testing.worlds": "TurnableClock",
}
"""Public names by module."""

__all__, __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
