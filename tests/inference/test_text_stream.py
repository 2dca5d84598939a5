"""Streams of text beside the tokenizers library's own decoding of whole texts, in any cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference.text.stream import TextStream, TokenBytes
from tests.support.tiers import examples

_LETTERS = ["a", "b", "é", "한", ".", "'", "do", "n't", "ing"]
_SPECIAL = [AddedToken(one, special=True, normalized=False) for one in ("<s>", "</s>")]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACED = [*_LETTERS, "▁", "▁▁", "▁a", "▁한"]


def built(pieces: Sequence[str], decoder: decoders.Decoder | None) -> Tokenizer:
    """A tokenizer with these pieces, two special tokens, and an added one that is not special."""
    rules = Tokenizer(models.WordLevel({piece: id_ for id_, piece in enumerate(pieces)}, "a"))
    if decoder is not None:
        rules.decoder = decoder
    rules.add_special_tokens(_SPECIAL)
    rules.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return rules


_SPACES_AND_BYTES = (decoders.Replace("▁", " "), decoders.ByteFallback())
_ALPHABET = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "Ġì", "íķľ", "Ġðł"]

VOCABULARIES = {
    "byte level, as Qwen's": built(_ALPHABET, decoders.ByteLevel()),
    "byte fallback and a stripped space, as Llama 2's": built(
        [*_BYTES, *_SPACED],
        decoders.Sequence([*_SPACES_AND_BYTES, decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    ),
    "byte fallback, as Gemma's": built(
        [*_BYTES, *_SPACED], decoders.Sequence([*_SPACES_AND_BYTES, decoders.Fuse()])
    ),
    "Metaspace, as T5's": built(_SPACED, decoders.Metaspace()),
    "WordPiece with cleanup": built([*_LETTERS, "##b", "##한"], decoders.WordPiece()),
    "word ends": built([*_LETTERS, "a</w>", "한</w>"], decoders.BPEDecoder("</w>")),
    "no decoder": built(_LETTERS, None),
}


def decoded(rules: Tokenizer, ids: Sequence[int]) -> str:
    """The library's text. Of byte fallback it garbles whole runs for a byte that is amiss: here
    only what is no character becomes U+FFFD.
    """
    if rules.token_to_id("<0x00>") is None:
        return str(rules.decode(ids))
    repaired, run = list[int](), bytearray()
    shown = [token for token in ids if rules.decode([token, token])]
    for token in [*shown, None]:
        piece = "" if token is None else rules.id_to_token(token)
        if piece in _BYTES:
            run.append(_BYTES.index(piece))
            continue
        repaired += ids_of(rules, (_BYTES[byte] for byte in lossy(run).encode()))
        run.clear()
        repaired += [] if token is None else [token]
    return str(rules.decode(repaired))


def ids_of(rules: Tokenizer, pieces: Iterable[str]) -> list[int]:
    """The ids of pieces of the vocabulary."""
    return [id_ for piece in pieces if (id_ := rules.token_to_id(piece)) is not None]


def lossy(raw: bytes | bytearray) -> str:
    """Bytes as text, with U+FFFD for what is no character, as the library reads them."""
    rules = VOCABULARIES["byte level, as Qwen's"]
    return str(rules.decode(ids_of(rules, (sorted_letters()[byte] for byte in raw))))


def streamed(rules: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    stream = TextStream(TokenBytes(rules), prompt)
    return [*map(stream.push, ids), stream.finish()]


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_stream_is_the_whole_decoding_behind_any_prompt(name: str, data: st.DataObject) -> None:
    rules = VOCABULARIES[name]
    size = rules.get_vocab_size()
    specials_and_letters = [*range(min(size, 4)), *range(max(size - 14, 0), size)]
    token = st.one_of(st.integers(0, size - 1), st.sampled_from(specials_and_letters))
    ids = data.draw(st.lists(token, max_size=12))
    whole = decoded(rules, ids)
    for cut in range(len(ids) + 1):
        same = [a == b for a, b in zip(whole, decoded(rules, ids[:cut]), strict=False)]
        shared = [*same, False].index(False)
        assert "".join(streamed(rules, ids[:cut], ids[cut:])) == whole[shared:]


@pytest.mark.parametrize("name", [one for one in VOCABULARIES if one.startswith("byte")])
@settings(max_examples=examples(40))
@given(st.text(max_size=8), st.text(max_size=8))
@example("great 👩‍👩‍👧", "입니다")
@example("안녕하세요", "여러분")
def test_no_character_is_lost_behind_characters_made_of_bytes(
    name: str, prompt: str, text: str
) -> None:
    rules = VOCABULARIES[name]
    pieces = sorted_letters() if "level" in name else _BYTES
    before, ids = (
        ids_of(rules, (pieces[byte] for byte in part.encode())) for part in (prompt, text)
    )
    start = ids_of(rules, "a")  # whose space at the beginning may be stripped
    assert "".join(streamed(rules, [*start, *before], ids)) == text
    shown = [len(piece) for piece in streamed(rules, start, ids)]
    assert max(shown) <= 1  # each character when its last byte comes


def sorted_letters() -> list[str]:
    """The letters that stand for bytes, by byte."""
    printed = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printed]
    return [chr(b) if b in printed else chr(256 + hidden.index(b)) for b in range(256)]


def test_a_token_has_the_bytes_that_it_has_in_the_middle_of_a_text() -> None:
    spelled = {
        "byte level, as Qwen's": {"Ġa": b" a", "<s>": b"<s>", "ì": b"\xec"},
        "byte fallback and a stripped space, as Llama 2's": {"▁a": b" a", "<0xE4>": b"\xe4"},
        "WordPiece with cleanup": {"a": b" a", "##b": b"b", "n't": b"n't"},
    }
    for name, pieces in spelled.items():
        rules = VOCABULARIES[name]
        assert [*map(TokenBytes(rules).of, ids_of(rules, pieces))] == [*pieces.values()]
    rules = VOCABULARIES["byte fallback and a stripped space, as Llama 2's"]
    half, begun = ids_of(rules, ["<0x80>"]), ids_of(rules, ["<0xE4>"])  # neither is a character
    assert streamed(rules, [], half * 3) == ["\N{REPLACEMENT CHARACTER}"] * 3 + [""]
    assert streamed(rules, [], begun) == ["", "\N{REPLACEMENT CHARACTER}"]
