from holdfast.testing.buckets import BucketBehaviour
from holdfast.testing.flows import HandEngine, MemoryBucket, NumbersSource
from holdfast.testing.formats import FormatBehaviour
from holdfast.testing.functions import RecordingContext, call_handler, stream_event
from holdfast.testing.processing import Processed, run_processor, spark_session
from holdfast.testing.processors import ProcessorBehaviour
from holdfast.testing.proxy import TcpProxy
from holdfast.testing.sinks import SinkBehaviour
from holdfast.testing.sources import SourceBehaviour
from holdfast.testing.store_outages import OutageBehaviour
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.stream_setting import SampleRecord
from holdfast.testing.streams import StreamBehaviour
from holdfast.testing.worlds import TurnableClock

__all__ = [
    "BucketBehaviour",
    "FormatBehaviour",
    "HandEngine",
    "MemoryBucket",
    "NumbersSource",
    "OutageBehaviour",
    "Processed",
    "ProcessorBehaviour",
    "RecordingContext",
    "SampleRecord",
    "SinkBehaviour",
    "SourceBehaviour",
    "StoreBehaviour",
    "StoreMachine",
    "StreamBehaviour",
    "TcpProxy",
    "TurnableClock",
    "call_handler",
    "run_processor",
    "spark_session",
    "stream_event",
]
