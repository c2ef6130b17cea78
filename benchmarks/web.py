"""The dashboard of 100,000 partitions and 100 nodes in Chromium, as `holdfast web` serves it; SQLite and PostgreSQL.

Figures stand beside the bars that we have set ourselves, and in the case `peer` beside Flower, the dashboard of Celery,
with as many tasks in its memory; it is installed into an environment of its own, and left out where that fails. Viewers
of the case `rest` look at the overview, the nodes, a pipeline and its failed partitions, some with a map. First paint
is from the request on with an empty cache; a tick is from the moment at which the server has read the store until the
page shows it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from benchmarks._process_cpu import cpu_seconds
from benchmarks._web_site import MAPPED, PARTITIONS, Served, Site, served, sites
from benchmarks._web_viewers import viewers
from benchmarks.harness import Comparison, compare
from holdfast.configured_store import load_settings
from holdfast.leases.store import Store
from holdfast.web.dashboard import Dashboard
from tests.servers.processes import free_port
from tests.web.browser import chromium, serving

CASES = ("paint", "map", "reads", "rest", "peer")
MOST_PAINT_MS, MOST_KB, FRAMES, MOST_TICK_MS, MOST_CPU, MOST_MB = 300.0, 100.0, 60.0, 250.0, 5.0, 200.0
LOADS, CHANGED_PER_SECOND, VIEWERS = 11, 800, 200
SETTLING_SECONDS = 10.0
WATCHED_SECONDS, RESTING_SECONDS, READING_SECONDS = 24.0, 60.0, 40.0
PAINTED = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint.startTime, all.reduce((sum, entry) => sum + entry.transferSize, 0) / 1000];
}"""
# When each tick was read, when its region was shown, and every frame.
WATCH = """
  window.ticks = []; window.frames = []; window.changes = 0;
  let at = null;
  const Plain = window.WebSocket;
  window.WebSocket = class extends Plain {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", (event) => {
        const message = JSON.parse(event.data);
        if (message.regions?.includes("counts")) at = Date.parse(message.at);
        window.changes += message.changes?.length ?? 0;
      });
    }
  };
  document.addEventListener("holdfast:region", (event) => {
    if (event.detail === "counts" && at !== null) window.ticks.push(Date.now() - at);
  });
  const frame = (time) => { window.frames.push(time); requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
"""
READS = ("get", "find", "outline", "count", "snapshot", "sums")
PEER = Path.home() / ".cache" / "holdfast" / "flower"


def run(cases: Sequence[str] = CASES) -> list[Comparison]:
    """The cases on each store."""
    found: list[Comparison] = []
    with ExitStack() as closing, chromium() as browser:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        for site in sites(closing, folder):
            if {"paint", "map", "rest", "peer"} & set(cases):
                with served(site) as process:
                    found += _of_process(site, process, browser, cases)
            if "reads" in cases:
                found += _reads(site)
    return found


def _of_process(site: Site, process: Served, browser: Browser, cases: Sequence[str]) -> Iterator[Comparison]:
    painted = _painted(browser, process) if {"paint", "peer"} & set(cases) else {}
    if "paint" in cases:
        for page, (paint, size) in painted.items():
            yield compare("web", f"{site.name}, first paint of {page}", paint, MOST_PAINT_MS, "ms", "<= 1")
            yield compare("web", f"{site.name}, transfer of {page}", size, MOST_KB, "KB", "<= 1")
    if "map" in cases:
        yield from _map(site, browser, process)
    if "rest" in cases:
        yield from _rest(site, process)
    if "peer" in cases:
        yield from _peer(site, browser, *painted["a pipeline"], process.memory)


def _painted(browser: Browser, process: Served) -> dict[str, tuple[float, float]]:
    pages = {"the overview": "/", "a pipeline": "/pipelines/events", "the nodes": "/nodes"}
    state = _logged_in(browser, process)
    return {name: _paint(browser, f"{process.url}{path}", state) for name, path in pages.items()}


def _paint(browser: Browser, url: str, state: Any = None) -> tuple[float, float]:
    """The median of milliseconds and kilobytes, each load with an empty cache."""
    figures = []
    for _ in range(LOADS):
        context = browser.new_context(storage_state=state, viewport={"width": 1280, "height": 700})
        page = context.new_page()
        page.goto(url)
        page.wait_for_load_state("networkidle")
        figures.append(page.evaluate(PAINTED))
        context.close()
    paints, sizes = zip(*figures, strict=True)
    return statistics.median(paints), statistics.median(sizes)


def _logged_in(browser: Browser, process: Served) -> Any:
    context = browser.new_context()
    context.new_page().goto(f"{process.url}/login?token={process.token}")
    state = context.storage_state()
    context.close()
    return state


def _map(site: Site, browser: Browser, process: Served) -> Iterator[Comparison]:
    """The page of a pipeline whose partitions change all the time."""
    context = browser.new_context(storage_state=_logged_in(browser, process), viewport={"width": 1280, "height": 700})
    context.add_init_script(WATCH)
    page = context.new_page()
    page.goto(f"{process.url}/pipelines/clicks")
    page.wait_for_timeout(SETTLING_SECONDS * 1000)  # until pages of before count no more
    with _changing(site):
        page.evaluate("() => { window.ticks = []; window.frames = []; window.changes = 0; }")
        page.wait_for_timeout(WATCHED_SECONDS * 1000)
        frames, ticks, changes = page.evaluate("() => [window.frames, window.ticks, window.changes]")
    context.close()
    if not changes or not ticks:
        raise ValueError(f"the page has seen {changes} changes and {len(ticks)} ticks")
    rate = (len(frames) - 1) / (frames[-1] - frames[0]) * 1000
    print(f"  {changes / WATCHED_SECONDS:,.0f} changes per second, {len(ticks)} ticks", file=sys.stderr)
    yield compare("web", f"{site.name}, map of {MAPPED:,} in change", rate, FRAMES, "frames/s", 0.98)
    yield compare("web", f"{site.name}, tick to page", statistics.median(ticks), MOST_TICK_MS, "ms", "<= 1")


@contextmanager
def _changing(site: Site) -> Iterator[None]:
    """Change so many partitions of `clicks` per second meanwhile."""
    over, portion = threading.Event(), CHANGED_PER_SECOND // 8

    def change() -> None:
        at, due = 0, time.monotonic()
        while not over.is_set():
            site.change(range(at, at + portion))
            at, due = (at + portion) % MAPPED, due + 1 / 8
            over.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _rest(site: Site, process: Served) -> Iterator[Comparison]:
    with viewers(process.url, VIEWERS, process.token):
        _settle(process)
        before = cpu_seconds(process.pid)
        time.sleep(RESTING_SECONDS)
        used = (cpu_seconds(process.pid) - before) / RESTING_SECONDS * 100
        memory = process.memory
    yield compare("web", f"{site.name}, at rest with {VIEWERS} viewers", used, MOST_CPU, "% of a core", "<= 1")
    yield compare("web", f"{site.name}, memory with {VIEWERS} viewers", memory, MOST_MB, "MB", "<= 1")


def _settle(process: Served) -> None:
    """Wait until the process has read all rows once, and rests."""
    for _ in range(20):
        before = cpu_seconds(process.pid)
        time.sleep(5)
        if cpu_seconds(process.pid) - before < 0.5:
            return


def _reads(site: Site) -> Iterator[Comparison]:
    """Reads of the store with one viewer of a pipeline and its map, and with many."""
    counted: Counter[str] = Counter()
    plain = {name: getattr(site.store, name) for name in READS}
    for name, read in plain.items():
        setattr(site.store, name, _counting(read, name, counted))
    try:
        figures = [_reads_of(site.store, site.file, number, counted) for number in (1, VIEWERS)]
    finally:
        for name in plain:
            delattr(site.store, name)
    one, many = figures
    yield compare("web", f"{site.name}, reads with {VIEWERS} viewers, to 1", many, one, "reads", "<= 1.1")


def _counting(read: Callable[..., Any], name: str, counted: Counter[str]) -> Callable[..., Any]:
    def count(*given: Any) -> Any:
        counted[name] += 1
        return read(*given)

    return count


def _reads_of(store: Store, file: Path, number: int, counted: Counter[str]) -> float:
    dashboard = Dashboard(file, load_settings(file), store)
    with serving(dashboard) as url, viewers(url, number, pages=[["/pipelines/events", "map:events"]]):
        time.sleep(READING_SECONDS)  # until all rows are known
        counted.clear()
        time.sleep(READING_SECONDS)
        return float(counted.total())


def _peer(site: Site, browser: Browser, paint: float, size: float, memory: float) -> Iterator[Comparison]:
    with _flower() as process:
        if process is None:
            print("web: Flower cannot be installed here: no peer", file=sys.stderr)
            return
        theirs, their_size = _paint(browser, f"{process.url}/tasks")
        yield compare("web", f"{site.name}, first paint of a list, to Flower's", paint, theirs, "ms", "<= 1")
        yield compare("web", f"{site.name}, its transfer, to Flower's", size, their_size, "KB", "<= 1")
        yield compare("web", f"{site.name}, memory, to Flower's", memory, process.memory, "MB", "<= 1")


@contextmanager
def _flower() -> Iterator[Served | None]:
    python, port = str(PEER / "bin" / "python"), free_port()
    if not Path(python).exists():
        made = subprocess.run([sys.executable, "-m", "venv", PEER], check=False).returncode == 0
        install = [python, "-m", "pip", "install", "-q", "flower"]
        if not made or subprocess.run(install, check=False, timeout=300).returncode:
            yield None
            return
    script = Path(__file__).with_name("_web_peer.py")
    words = [python, str(script), str(port), str(PARTITIONS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            if not any(line.startswith("ready") for line in process.stdout or ()):
                raise ValueError("Flower did not start")
            yield Served(f"http://127.0.0.1:{port}", "", process.pid)
        finally:
            process.terminate()
