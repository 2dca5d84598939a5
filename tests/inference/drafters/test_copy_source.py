"""What followed the same words before is named, from this text and from its user's earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from inference.draft_tuning import TUNING
from inference.drafters.copied_text import CopySource, History
from inference.planner.child_features import Following


def named(source: CopySource) -> list[Following]:
    return source.following(source.end)[1]


def tokens_of(source: CopySource) -> list[int]:
    return [one.token for one in named(source)]


def test_the_most_frequent_comes_first_and_the_latest_is_marked() -> None:
    source = CopySource()
    source.open([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2])
    assert named(source) == [Following(3, 2, 1, False), Following(4, 1, 0, True)]


def test_one_word_names_what_followed_it() -> None:
    source = CopySource()
    source.open([5, 1, 6, 1])
    assert source.following(source.end) == (1, [Following(6, 1, 0, True)])


def test_a_token_that_never_occurred_names_nothing() -> None:
    source = CopySource()
    source.open([5, 1, 6, 2])
    assert source.following(source.end) == (0, [])


def test_few_tokens_are_named_and_the_others_are_counted() -> None:
    source = CopySource()
    source.open([token for last in range(10, 16) for token in (1, 2, last)] + [1, 2])
    assert len(named(source)) == TUNING.copied
    assert named(source)[-1].others == 6 - TUNING.copied


def test_a_step_goes_on_as_if_the_token_had_been_committed() -> None:
    source, text = CopySource(), [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4]
    source.open(text[:-2])
    ahead = source.step(source.step(source.end, 1), 4)
    assert source.following(ahead)[1][0].token == 1


def test_earlier_texts_of_the_same_user_are_copied_and_those_of_others_are_not() -> None:
    history = History()
    own, other = CopySource(history), CopySource()
    for source in (own, other):
        source.open([1, 2, 3, 4])
        source.close()
        source.open([8, 1, 2])
    assert tokens_of(own) == [3]
    assert tokens_of(other) == []


def test_a_match_never_reaches_over_two_texts() -> None:
    history = History()
    for text in ([1, 2], [3, 4], [1, 2]):
        source = CopySource(history)
        source.open(text)
        source.close()
    source = CopySource(history)
    source.open([1, 2])
    assert named(source) == []


def test_a_history_is_bounded_and_keeps_the_latest() -> None:
    history = History(most=100)
    for start in range(0, 1000, 10):
        history.keep(list(range(start, start + 10)))
        assert len(history.automaton) <= 100
    source = CopySource(history)
    source.open([995, 996])
    assert tokens_of(source) == [997]
    source.open([105, 106])
    assert tokens_of(source) == []


def test_a_text_that_is_made_goes_on_while_its_history_is_rebuilt() -> None:
    history = History(most=20)
    history.keep(range(10))
    source = CopySource(history)
    source.open([1, 2])
    before = source.end
    history.keep(range(100, 118))
    assert source.following(before)[1][0].token == 3


def commit(source: CopySource, tokens: Sequence[int]) -> None:
    for token in tokens:
        source.extend(token)


def test_a_longer_match_within_the_text_wins_over_the_history() -> None:
    history = History()
    history.keep([2, 3, 9])
    source = CopySource(history)
    source.open([1, 2, 3, 4])
    commit(source, [1, 2, 3])
    assert tokens_of(source) == [4]
