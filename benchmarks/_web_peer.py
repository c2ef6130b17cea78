"""Flower, the dashboard of Celery, with as many tasks as our store has partitions; in an environment of its own.

This file is run by the Python of that environment: `_web_peer.py PORT TASKS`.
"""

from __future__ import annotations

import sys
import time


def main(port: int, tasks: int) -> None:
    """Serve Flower with tasks of a hundred workers in its memory, as if their events had come from a broker."""
    from celery import Celery  # type: ignore[import-not-found]
    from flower.app import Flower  # type: ignore[import-not-found]
    from flower.urls import settings  # type: ignore[import-not-found]
    from tornado.options import options  # type: ignore[import-not-found]

    options.max_tasks = tasks * 2
    options.port = port
    options.address = "127.0.0.1"
    capp = Celery("peer", broker="memory://")
    served = Flower(capp=capp, options=options, **settings)
    state = served.events.state
    state.max_tasks_in_memory = tasks * 2
    now = time.time()
    for number in range(tasks):
        worker = f"celery@host-{number % 100:03}"
        event = {"uuid": f"task-{number}", "hostname": worker, "timestamp": now, "local_received": now, "clock": number}
        state.event({**event, "type": "task-received", "name": "events", "args": "()", "kwargs": "{}"})
        if number % 3:
            state.event({**event, "type": "task-started"})
    served.start_http_server()
    print(f"ready http://127.0.0.1:{port}/", flush=True)
    served.start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
