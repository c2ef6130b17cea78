"""Mutants of the topic of dead letters: who is fenced, what is looked for, and when a commit is done."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, suppress
from typing import Any

from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.letter_topic import LetterTopic, TopicAttempt
from holdfast.errors import Unavailable
from holdfast.leases.lease import Lease
from tests.simulation.mutation import Put, mutant


@mutant("topic")
def letters_are_not_sent_to_the_topic(put: Put) -> None:
    put(LetterTopic, "publish", lambda self, box, publication, progress: None)


@mutant("topic")
def a_commit_is_done_although_the_topic_did_not_respond(put: Put) -> None:
    original = LetterTopic.publish

    def publish(self: LetterTopic, *args: Any) -> None:
        with suppress(Unavailable):
            original(self, *args)

    put(LetterTopic, "publish", publish)


@mutant("topic")
def an_attempt_does_not_fence_the_one_before_it(put: Put) -> None:
    numbers = itertools.count()

    def begun(self: LetterTopic, stack: ExitStack, lease: Lease) -> TopicAttempt:
        return stack.enter_context(self.attempt(f"{lease.key}-{next(numbers)}"))

    put(LetterTopic, "_begun", begun)


@mutant("topic")
def letters_of_an_earlier_attempt_are_not_looked_for(put: Put) -> None:
    put(LetterTopic, "_present", lambda self, attempt, noted, commit, progress: set())


@mutant("topic")
def letters_are_looked_for_from_the_present_end_of_the_topic(put: Put) -> None:
    put(FileLetters, "note", lambda self, topic, name, text: text)
