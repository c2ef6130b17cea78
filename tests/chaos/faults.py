"""Everything that goes wrong, one after the other, and in which order."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.site import SESSION_TIMEOUT, UP_WITHIN, Site
from tests.e2e.fleet import eventually
from tests.e2e.freezing import freeze, freeze_descendants, thaw
from tests.servers.http_proxy import Fault
from tests.servers.processes import Server

Strike = Callable[[Site, random.Random], str]
CUT_WITHIN = 120.0
COMMIT = b"sha256"  # only receipts have a checksum


def kill(site: Site, dice: random.Random) -> str:
    """kill -9, and a new process under the same name."""
    name = _victim(site, dice)
    site.members[name].die()
    site.start(name)
    return name


def pause(site: Site, dice: random.Random) -> str:
    """Driver, JVM and workers stand still for longer than the session lives, then go on as if nothing had been."""
    name = _victim(site, dice)
    pid = site.members[name].node.process.pid
    seconds = SESSION_TIMEOUT + dice.uniform(0.5, 2.0)
    freeze(pid)
    freeze_descendants(pid)
    time.sleep(seconds)
    thaw(pid)
    return f"{name} for {seconds:.1f} s"


def store_down(site: Site, dice: random.Random) -> str:
    return _restart(site.postgresql, dice, dice.uniform(0.5, SESSION_TIMEOUT + 2))


def store_hangs(site: Site, dice: random.Random) -> str:
    """Connections are there, answers are not."""
    seconds = dice.uniform(1.0, SESSION_TIMEOUT + 2)
    site.postgresql.freeze()
    time.sleep(seconds)
    site.postgresql.thaw()
    return f"for {seconds:.1f} s"


def commit_unanswered(site: Site, dice: random.Random) -> str:
    """The line to the store breaks at a commit: before the store has it, or when it is done."""
    delivered = dice.random() < 0.5
    lines = [member.store for member in site.members.values() if member.is_up]
    for line in lines:
        line.cut(COMMIT, delivered=delivered)
    eventually(lambda: any(line.is_cut for line in lines), CUT_WITHIN, "somebody commits")
    return "applied" if delivered else "not applied"


def broker_down(site: Site, dice: random.Random) -> str:
    return _restart(site.kafka, dice, dice.uniform(0.0, 3.0))


def bucket_refuses(site: Site, dice: random.Random) -> str:
    """503 to most requests."""
    return _weather(site, dice, Fault.REFUSED, dice.uniform(0.6, 1.0))


def bucket_loses_answers(site: Site, dice: random.Random) -> str:
    """What was asked for is done, and nobody hears of it."""
    return _weather(site, dice, Fault.ANSWER_LOST, dice.uniform(0.2, 0.5))


def bucket_hangs_up(site: Site, dice: random.Random) -> str:
    return _weather(site, dice, Fault.DROPPED, dice.uniform(0.2, 0.5))


def bucket_slow(site: Site, dice: random.Random) -> str:
    delay, seconds = dice.uniform(0.3, 1.5), dice.uniform(3.0, 6.0)
    for member in site.members.values():
        member.bucket.delay = delay
    time.sleep(seconds)
    for member in site.members.values():
        member.bucket.delay = 0.0
    return f"{delay:.1f} s each for {seconds:.1f} s"


def replace_node(site: Site, dice: random.Random) -> str:
    """A node under a new name joins, and one of the others leaves in order."""
    present = [name for name, member in site.members.items() if member.wanted]
    new = f"n{len(site.members)}"
    site.start(new)
    site.wait_until_up(new)
    old = dice.choice(present)
    _leave(site, old)
    return f"{new} joins, {old} leaves"


def switch_generation(site: Site, dice: random.Random) -> str:
    """New parsing is rolled out: one node first, the others when it is there."""
    present = [name for name, member in site.members.items() if member.wanted]
    first, *others = dice.sample(present, len(present))
    site.generation += 1
    _leave(site, first)
    site.start(first)
    site.wait_until_up(first)
    for name in others:
        _leave(site, name)
        site.start(name)
    return f"to {site.generation}, {first} first"


COMMON: dict[Strike, int] = {
    kill: 2,
    pause: 2,
    store_down: 1,
    store_hangs: 1,
    commit_unanswered: 1,
    broker_down: 1,
    bucket_refuses: 1,
    bucket_loses_answers: 1,
    bucket_hangs_up: 1,
    bucket_slow: 1,
}
RARE: dict[Strike, int] = {replace_node: 1, switch_generation: 1}


def drawn(seed: int) -> Iterator[Strike]:
    """Faults without end: one shuffled deck after the other, every second one with the rare ones."""
    dice = random.Random(seed)
    for number in itertools.count():
        deck = [fault for fault, copies in (COMMON | (RARE if number % 2 == 0 else {})).items() for _ in range(copies)]
        yield from dice.sample(deck, len(deck))


def _victim(site: Site, dice: random.Random) -> str:
    eventually(site.up, UP_WITHIN, "some node is up")
    return dice.choice(site.up())


def _leave(site: Site, name: str) -> None:
    member = site.members[name]
    code = member.leave()
    assert code == 0, f"{name} was asked to leave and ended with {code}:\n{member.said()[-3000:]}"


def _restart(server: Server, dice: random.Random, seconds: float) -> str:
    crash = dice.random() < 0.5
    end: Any = server.crash if crash else server.stop
    end()
    time.sleep(seconds)
    server.start()
    return f"{'crashed' if crash else 'stopped'}, away for {seconds:.1f} s"


def _weather(site: Site, dice: random.Random, fault: Fault, chance: float) -> str:
    seconds = dice.uniform(2.0, 5.0)
    site.weather.fault, site.weather.chance = fault, chance
    time.sleep(seconds)
    site.weather.fault = None
    return f"{chance:.0%} of requests for {seconds:.1f} s"
