"""Handlers of Nuclio's documentation run as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.functions.rig import Rec, rig

STATIC = {"worker_allocation": "static"}

SEED = """
import time


def handler(context, event):
    context.logger.debug_with('Got event', shard_id=event.shard_id, body=event.body.decode('utf-8'))
    time.sleep(SLEEP)
"""


def test_the_handler_that_logs_and_sleeps(tmp_path: Path) -> None:
    with rig(tmp_path, SEED.replace("SLEEP", "0")) as site:
        site.assign(*range(32))
        for shard in range(32):
            site.feed_offsets(*range(1, 11), shard=shard)
        site.settle()
        more = [line["more"] for line in site.log if line["message"] == "Got event"]
        for shard in range(32):
            lines = [f"shard_id={shard} || body=shard-{shard}-record-{n} || worker_id=0" for n in range(1, 11)]
            assert [line for line in more if line.startswith(f"shard_id={shard} ")] == lines
        assert len(more) == 320


RUN_UNTIL_COMPLETE = """
import asyncio
import nuclio

def handler(context, event):
    qualified_offset = nuclio.QualifiedOffset.from_event(event)
    loop = asyncio.get_event_loop()
    loop.run_until_complete(context.platform.explicit_ack(qualified_offset))
    return "acked"
"""


def test_the_handler_that_acks_with_run_until_complete(tmp_path: Path) -> None:
    with rig(tmp_path, RUN_UNTIL_COMPLETE, ack="explicitOnly", **STATIC) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2)
        site.settle()
        assert site.row() == (3, ())


KEPT = """
import nuclio
import nuclio_sdk

kept = []

async def handler(context, event):
    response = nuclio_sdk.Response()
    response.ensure_no_ack()
    qualified_offset = nuclio.QualifiedOffset.from_event(event)
    kept.append(qualified_offset)
    if len(kept) == 3:
        for qualified_offset in kept[1:]:
            await context.platform.explicit_ack(qualified_offset)
    return response
"""


@pytest.mark.parametrize("mode", ["enable", "explicitOnly"])
def test_an_offset_that_was_kept_is_acked_in_a_later_invocation(tmp_path: Path, mode: str) -> None:
    with rig(tmp_path, KEPT, ack=mode, **STATIC) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2)
        site.settle()
        assert site.row() == (0, ((1, 3),))


BY_HAND = """
def handler(context, event):
    return context.Response(headers={"X-Nuclio-Stream-No-Ack": event.body.decode()}, body="ok")
"""


def test_the_no_ack_header_set_by_hand(tmp_path: Path) -> None:
    with rig(tmp_path, BY_HAND, ack="enable", **STATIC) as site:
        site.assign(0)
        site.feed(Rec(0, b"false"), Rec(1, b"true"), Rec(2, b"False"), Rec(3, b"True"))
        site.settle()
        assert site.row() == (1, ((2, 3),))


DOCUMENTED = [
    """
def handler(context, event):
    return ""
""",
    """
import nuclio_sdk

def handler(context: nuclio_sdk.Context, event: nuclio_sdk.Event):
    context.logger.info_with('Invoked', method=event.method)
    return "Hello, from Nuclio :]"
""",
    """
import asyncio

import nuclio_sdk

async def handler(context: nuclio_sdk.Context, event: nuclio_sdk.Event):
    context.logger.info_with('Updating db in background', event_body=event.body.decode())
    asyncio.create_task(update_db(context, event))
    return "Hello, from Nuclio :]"

async def update_db(context, event):
    context.db.update_record(event.body)

def init_context(context):
    context.db = type("Db", (), {"update_record": print})()
""",
    """
def handler(context, event):
    context.logger.info('This is an unstructured log')

    return context.Response(body='Hello, from nuclio :]',
                            headers={},
                            content_type='text/plain',
                            status_code=200)
""",
    """
def init_context(context):
    setattr(context.user_data, 'my_db_connection', 'my_connection')
    context.platform.set_termination_callback(lambda: context.logger.info('closing'))

def handler(context, event):
    assert context.user_data.my_db_connection == 'my_connection'
    return (200, {"worker": context.worker_id, "trigger": context.trigger.kind})
""",
    """
def handler(context, event):
  if event.path == "/do_something":
    return "I'm doing something..."
""",
    """
import os


def handler(context, event):

	# use the logger, outputting the event body
	context.logger.info_with('Got invoked',
		trigger_kind=event.trigger.kind,
		event_body=event.body,
		some_env=os.environ.get('MY_ENV_VALUE'))

	# check if the event came from cron
	if event.trigger.kind == 'cron':

		# log something
		context.logger.info('Invoked from cron')

	else:

		# return a response
		return 'A string response'
""",
    """
class my_db:
    create_connection = staticmethod(lambda: my_db)
    query = staticmethod(print)

def handler(context, event):
    context.user_data.my_db_connection.query(...)


def init_context(context):

    # Create the DB connection under "context.user_data"
    setattr(context.user_data, 'my_db_connection', my_db.create_connection())
""",
    """
def handler(context, event):
    body = event.body.decode('utf-8')
    context.logger.debug_with('Analyzing ', 'sentence', body)
    return str({"neu": 1.0})
""",
    """
import os


def handler(context, event):
	context.logger.info('Using secret to encrypt body')

	# get the encryption key
	encryption_key = os.environ.get('ENCRYPT_KEY', 'some-default-key')

	# encrypt the body
	encrypted_body = event.body[::-1]

	# return the encrypted body, and some hard-coded header
	return context.Response(body=str(encrypted_body),
							headers={'x-encrypt-algo': 'aes256'},
							content_type='text/plain',
							status_code=200)
""",
]


@pytest.mark.parametrize("code", DOCUMENTED, ids=range(len(DOCUMENTED)))
def test_handlers_of_the_documentation(tmp_path: Path, code: str) -> None:
    with rig(tmp_path, code) as site:
        site.assign(0)
        site.feed_offsets(0, 1)
        site.settle()
        assert site.row() == (2, ())
        assert [line for line in site.log if line["message"] == "Handler failed"] == []


DOCUMENTED_BATCH = """
import nuclio_sdk

def handler(context, batch: list[nuclio_sdk.Event]):
    context.logger.info_with('Got batched event!')
    batched_response = []
    response = process_batch(batch)
    for item in batch:
        event_id = item.id
        batched_response.append(nuclio_sdk.Response(
            body=response,
            headers={},
            content_type="text/plain",
            status_code=200,
            event_id=event_id,
        ))
    return batched_response

def process_batch(event: list[nuclio_sdk.Event]):
    return "Hello"
"""


def test_the_batch_handler_of_the_documentation(tmp_path: Path) -> None:
    with rig(tmp_path, DOCUMENTED_BATCH, batch={"size": 3, "timeout": "1s"}) as site:
        site.assign(0)
        site.feed_offsets(*range(6))
        site.settle()
        assert site.row() == (6, ())
        assert [line["message"] for line in site.log] == ["Got batched event!"] * 2


BATCHED = """
import nuclio_sdk

def handler(context, batch: list[nuclio_sdk.Event]):
    context.logger.info_with('Got batched event!')
    batched_response = []
    for item in batch:
        event_id = item.id
        batched_response.append(nuclio_sdk.Response(
            body=item.body,
            headers={},
            content_type="text/plain",
            status_code=500 if item.body == b"bad" and item.offset not in context.seen else 200,
            event_id=event_id,
        ))
        context.seen.append(item.offset)
    return batched_response

def init_context(context):
    context.seen = []
"""


def test_a_batch_handler_that_responds_to_each_event(tmp_path: Path) -> None:
    with rig(tmp_path, BATCHED, batch={"size": 3, "timeout": "1s"}) as site:
        site.assign(0)
        site.feed(Rec(0, b"good"), Rec(1, b"bad"), Rec(2, b"good"), Rec(3, b"good"))
        site.worker.step()
        assert site.row() == (1, ((2, 3),))
        site.settle()
        assert site.row() == (4, ())
        assert site.worker.function.context.seen == [0, 1, 2, 1, 3]  # type: ignore[attr-defined]


def test_a_json_body_is_parsed_as_in_nuclio(tmp_path: Path) -> None:
    code = "def handler(context, event):\n    context.user_data.seen.append(event.body)\n"
    with rig(tmp_path, code) as site:
        site.assign(0)
        site.feed(Rec(0, json.dumps({"a": 1}).encode(), (("content-type", b"application/json"),)), Rec(1, b"{}"))
        site.settle()
        assert site.seen == [{"a": 1}, b"{}"]
