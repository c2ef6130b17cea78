"""Functions: latency, throughput, pauses, idle cost and memory, the runtime alone, and the embedded stream.

`make bench-functions` runs all cases, which takes half an hour, and `make bench-functions CASES="latency nodes"` only
these two. Kafka, Quix Streams and bytewax take part in `latency` and `throughput`; the two peers are installed by the
package registry into environments of their own, and are left out, with a line that says so, where that is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks import streams
from benchmarks._function_idle import idle
from benchmarks._function_latency import latency
from benchmarks._function_memory import memory
from benchmarks._function_recovery import nodes, worker_killed
from benchmarks._function_runtime import runtime
from benchmarks._function_throughput import throughput
from benchmarks.harness import Comparison

_CASES: Mapping[str, Callable[[], list[Comparison]]] = {
    "latency": latency,
    "throughput": throughput,
    "worker_killed": worker_killed,
    "nodes": nodes,
    "idle": idle,
    "memory": memory,
    "runtime": runtime,
    "streams": streams.run,
}
CASES = tuple(_CASES)


def run(cases: Sequence[str] = CASES) -> list[Comparison]:
    """These cases, one after the other."""
    return [comparison for case in cases for comparison in _CASES[case]()]
