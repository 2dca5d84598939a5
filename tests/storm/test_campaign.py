"""A target is what it was before a campaign of hostile messages.

CAMPAIGN_MESSAGES=N sends N of them in place of 1,000.
"""

from __future__ import annotations

import os
import random
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from grpc_comm.proto import verifier_pb2 as pb
from tests.storm.campaign import SERVICE, campaign
from tests.storm.hostile_calls import Author, Call, Outcome
from tests.storm.recorder import Conversation
from tests.support.mutator import Mutator
from tests.support.wire_fixtures import chain_of, decode_to, opening

KINDS = [GetMessageClass(method.input_type) for method in SERVICE.methods]


def test_a_target_is_the_same_after_a_campaign() -> None:
    messages = int(os.environ.get("CAMPAIGN_MESSAGES", "1000"))
    report = campaign(messages)
    assert report.problems == []
    assert report.messages >= messages
    assert report.texts > 0
    assert {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"} <= set(report.codes)


def set_fields(message: Message) -> set[str]:
    """Full names of the fields that are set, in messages within it, too."""
    found = set[str]()
    for field, held in message.ListFields():
        found.add(field.full_name)
        for inner in [] if field.message_type is None else held if field.is_repeated else [held]:
            found |= set_fields(inner)
    return found


def fields_of(descriptor: Any) -> set[str]:
    found = {field.full_name for field in descriptor.fields}
    within = [field.message_type for field in descriptor.fields if field.message_type]
    return found.union(*map(fields_of, within))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.DESCRIPTOR.name)
def test_every_field_of_every_message_is_tried(kind: type[Message]) -> None:
    mutator = Mutator(random.Random(1))
    tried = set[str]()
    for _ in range(500):
        tried |= set_fields(mutator.afresh(kind))
    assert tried == fields_of(kind.DESCRIPTOR)


@pytest.mark.parametrize("right", [opening(), chain_of(), decode_to(2)])
def test_a_message_is_changed_in_each_of_its_fields_and_mostly_in_few(right: Message) -> None:
    mutator = Mutator(random.Random(1))
    before, changed, same = right.SerializeToString(), set[str](), 0
    for _ in range(1_000):
        other = mutator.changed(right)
        differing = different_fields(right, other)
        changed |= differing
        same += not differing
    assert right.SerializeToString() == before
    assert changed == fields_of(right.DESCRIPTOR)
    assert 50 < same < 500


def different_fields(one: Message, other: Message) -> set[str]:
    """Full names of the fields in which they differ, in messages within them, too."""
    found = set[str]()
    for field in one.DESCRIPTOR.fields:
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        set_in = {field.has_presence and message.HasField(field.name) for message in (one, other)}
        if ours != theirs or len(set_in) > 1:
            found.add(field.full_name)
            if field.message_type and not field.is_repeated:
                found |= different_fields(ours, theirs)
    return found


def test_a_seed_makes_the_same_calls_again_with_ids_of_their_own() -> None:
    heard = [
        Conversation("/outrider.v1.Target/Session", [one.SerializeToString()])
        for one in (opening(model_fingerprint="f" * 32), opening(model_fingerprint="f" * 32))
    ]
    heard += [
        Conversation("/outrider.v1.Target/Describe", [b""]),
    ]
    calls = [[Author(heard, SERVICE, [1], seed=5).call() for _ in range(20)] for _ in range(2)]
    assert calls[0] == calls[1]
    author = Author(heard, SERVICE, [1], seed=5)
    first = [pb.ClientMessage.FromString(heard[0].messages[0]) for _ in range(2)]
    renamed = [author.renamed(message, {}) for message in first]
    assert renamed[0] != renamed[1]
    assert {message.open.model_fingerprint for message in first} == {"f" * 32}


def test_a_method_that_no_honest_client_called_is_missed() -> None:
    with pytest.raises(ValueError, match="no honest"):
        Author([], SERVICE, [], seed=0)


def test_an_end_that_should_not_have_been_is_counted() -> None:
    outcome = Outcome()
    call = Call("/x.Y/Z", [b""], leaves=False)
    outcome.ended(call, 1, grpc.StatusCode.INVALID_ARGUMENT, "no")
    assert not outcome.problems
    for code in (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ):
        outcome.ended(call, 1, code, "why")
    assert len(outcome.problems) == 3
    assert (outcome.calls, outcome.messages) == (4, 4)
