"""The suffix automaton knows every context that occurred, and how often each token followed it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inference.drafters.copied_text import COUNTED, ROOT, Match, SuffixAutomaton

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def automaton_of(tokens: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in tokens:
        automaton.extend(token)
    return automaton


def occurrences(part: list[int], whole: list[int]) -> list[int]:
    """Positions behind every occurrence of a part."""
    size = len(part)
    return [at for at in range(size, len(whole) + 1) if whole[at - size : at] == part]


@given(TOKENS)
def test_its_end_is_the_longest_end_that_occurred_before(tokens: list[int]) -> None:
    longest = max(
        size
        for size in range(len(tokens))
        if len(occurrences(tokens[len(tokens) - size :], tokens)) > 1 or size == 0
    )
    assert automaton_of(tokens).end.length == longest


@given(TOKENS, TOKENS)
def test_a_match_is_the_longest_and_counts_what_followed(
    tokens: list[int], context: list[int]
) -> None:
    automaton, match = automaton_of(tokens), Match()
    for end, token in enumerate(context, 1):
        match = automaton.step(match, token)
        known = [size for size in range(end + 1) if occurrences(context[end - size : end], tokens)]
        assert match.length == max(known)
        behind = occurrences(context[end - match.length : end], tokens)
        followed = Counter(tokens[at] for at in behind if at < len(tokens))
        after = automaton.next[match.state]
        assert {one: automaton.counts[state] for one, state in after.items()} == followed
        for one, state in after.items():
            assert automaton.latest[state] == max(
                at for at in behind if tokens[at : at + 1] == [one]
            )


def test_a_token_that_is_repeated_costs_no_more_than_others() -> None:
    automaton = automaton_of([7] * 1000)
    assert len(automaton.next) == 1001
    assert automaton.end.length == 999
    assert sum(automaton.counts) <= 1000 * COUNTED


def test_what_never_occurred_matches_nothing() -> None:
    automaton = automaton_of([1, 2, 3])
    assert automaton.step(Match(), 9) == Match(ROOT, 0)
    assert automaton_of([]).end == Match(ROOT, 0)
