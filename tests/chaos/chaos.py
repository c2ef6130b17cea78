"""One run: three nodes at work, faults for a while, then everything must catch up, and is judged."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import Strike, drawn
from tests.chaos.oracle import Bucket, Lister, Log, judge
from tests.chaos.producer import Writer
from tests.chaos.site import BUCKET, PREFIX, Site, site
from tests.e2e.fleet import eventually

TOPICS = {"chaos-orders": 4, "chaos-clicks": 2}
NODES = ("a", "b", "c")
BURST = 5


@dataclass(frozen=True)
class Terms:
    """Faults for so many seconds and so many of them at least; then everything catches up, within bounds."""

    seed: int
    seconds: float = 0.0
    faults: int = 0
    caught_up_within: float = 240.0


@dataclass
class Verdict:
    """What is wrong, and what was done."""

    wrong: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)


Tell = Callable[[str], None]


def chaos(folder: Path, terms: Terms, tell: Tell) -> Verdict:
    """Run it. What goes wrong is in the verdict; only a fault of the test itself raises."""
    verdict, dice = Verdict(), random.Random(terms.seed)
    # The weather has dice of its own: how many requests there are must not decide what comes next.
    with site(folder, random.Random(terms.seed + 1)) as grounds:
        bucket = Bucket(grounds.s3.client(), BUCKET, PREFIX)
        with Writer(grounds.kafka, TOPICS, BURST) as writer, Lister(bucket) as lister:
            try:
                _strike(grounds, terms, dice, verdict, tell)
                writer.stop()
                _catch_up(grounds, writer.log(), bucket, terms, verdict)
                _prove(grounds, tell)
            except AssertionError as failure:
                verdict.wrong.append(str(failure))
        lister.look()
        verdict.wrong += lister.complaints
        files = bucket.read_anew()
        verdict.wrong += judge(writer.log(), writer.acknowledged, files)
        if not files:
            verdict.wrong.append("nothing was archived, so that nothing is proven")
        verdict.figures |= {
            "messages": sum(map(len, writer.acknowledged.values())),
            "files": len(files),
            "generations": len({file.generation for file in files}),
            "listings": lister.listings,
        }
    return verdict


def _strike(grounds: Site, terms: Terms, dice: random.Random, verdict: Verdict, tell: Tell) -> None:
    began = time.monotonic()
    for name in NODES:
        grounds.start(name)
    grounds.wait_until_up(*NODES)
    verdict.figures["start s"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    for strike in drawn(terms.seed):
        now = time.monotonic() - began
        if now >= terms.seconds and verdict.struck.total() >= terms.faults:
            break
        grounds.up()
        tell(f"{now:6.1f} s  {_one(strike, grounds, dice)}")
        verdict.struck[strike.__name__] += 1
        time.sleep(dice.uniform(0.5, 2.0))
    verdict.figures["faults s"] = round(time.monotonic() - began, 1)


def _one(strike: Strike, grounds: Site, dice: random.Random) -> str:
    """Let that happen; answers what it was."""
    try:
        return f"{strike.__name__}: {strike(grounds, dice)}"
    except AssertionError as failure:
        raise AssertionError(f"{strike.__name__}: {failure}") from failure


def _catch_up(grounds: Site, log: Log, bucket: Bucket, terms: Terms, verdict: Verdict) -> None:
    """Everything that was written becomes visible, and nodes leave in order."""
    began = time.monotonic()
    wanted = sum(map(len, log.values()))

    def visible() -> int:
        grounds.up()
        return sum(len(file.messages) for file in bucket.files())

    eventually(lambda: visible() >= wanted, terms.caught_up_within, "all that was written is visible")
    verdict.figures["catch up s"] = round(time.monotonic() - began, 1)
    codes = grounds.dismiss()
    assert set(codes) == {0}, f"nodes that were asked to leave ended with {codes}"


def _prove(grounds: Site, tell: Tell) -> None:
    """The product's own proof agrees."""
    config = grounds.root / "proof.yaml"
    config.write_text(grounds.config(grounds.postgresql.port, grounds.s3.port))
    words = [sys.executable, "-m", "holdfast", "verify", str(config), "--deep"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"verify ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    tell(f"holdfast verify --deep: {done.stdout.strip().splitlines()[-1]}")
