"""A limit on spending holds over all targets of a text, counting what was never heard of."""

from __future__ import annotations

from grpc_comm.client.received import Received, Spending
from inference.order import LEAST_CREDIT, Decode, Pace
from inference.stats import Traffic
from tests.support.wire_fixtures import progress


def text(**order: object) -> tuple[Received, Spending]:
    """Of three tokens, of which so far one target computed 30 nodes for three more."""
    received = Received([1, 2, 3], 100, Traffic())
    received.ask(80, frozenset())
    spending = Spending(received, Decode(80, **order))  # type: ignore[arg-type]
    received.take(progress(3, 4, 5, 6, nodes=30))
    return received, spending


def asked(spending: Spending) -> int:
    order = spending.session_order
    assert order is not None
    return order.most_nodes


def test_without_a_limit_an_order_stays_as_it_is() -> None:
    _, spending = text()
    spending.count_lost(acknowledged=6, tree_nodes=32)
    spending.settle_doubt()
    assert spending.session_order == Decode(80)
    assert not spending.is_spent


def test_a_limit_narrows_the_credit_so_that_little_is_spent_unseen() -> None:
    _, spending = text(most_nodes=100)
    assert spending.session_order == Decode(80, most_nodes=100, credit=LEAST_CREDIT)
    _, chosen = text(most_nodes=100, credit=9)
    assert chosen.session_order == Decode(80, most_nodes=100, credit=9)


def test_a_session_that_is_found_again_costs_what_it_says() -> None:
    _, spending = text(most_nodes=1_000, credit=4)
    spending.count_lost(acknowledged=6, tree_nodes=32)
    assert asked(spending) == 1_000
    spending.clear_doubt()
    assert asked(spending) == 1_000


def test_what_a_lost_target_may_have_computed_counts_as_spent() -> None:
    received, spending = text(most_nodes=1_000, credit=4)
    spending.count_lost(acknowledged=5, tree_nodes=32)  # up to token 9, and 6 are here: 3 forwards
    spending.settle_doubt()
    received.begin_session()
    assert asked(spending) == 1_000 - 30 - 3 * 32
    received.take(progress(6, 7, nodes=10))
    assert asked(spending) == 1_000 - 30 - 3 * 32
    spending.count_lost(acknowledged=7, tree_nodes=32)
    spending.settle_doubt()
    received.begin_session()
    assert asked(spending) == 1_000 - 30 - 3 * 32 - 10 - 4 * 32


def test_a_target_that_waits_made_one_forward_at_most() -> None:
    received, spending = text(most_nodes=1_000, pace=Pace.WAIT)
    spending.count_lost(acknowledged=6, tree_nodes=32)
    spending.settle_doubt()
    received.begin_session()
    assert asked(spending) == 1_000 - 30 - 32


def test_nothing_is_left_when_all_may_be_spent() -> None:
    _, spending = text(most_nodes=60, credit=4)
    assert not spending.is_spent
    spending.count_lost(acknowledged=6, tree_nodes=32)
    assert spending.is_spent
    spending.clear_doubt()
    assert not spending.is_spent
