"""The text of a generation as it grows: stop strings, and which tokens stay on the branch.

Stop strings are searched in the text, so one may begin and end anywhere inside tokens. Text in
which one may still begin is held back from streams. After a match the branch keeps the tokens that
end at or before it. If the match begins inside a token, the part of that token before the match is
returned as text, with which the branch's next run begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from radixlang.protocol import Delta
from radixlang.runtime.text.stop_pattern import StopPattern
from radixlang.runtime.text.tokenizer import TextStream


@dataclass(frozen=True, slots=True)
class Kept:
    """What a branch keeps of a generation: its text, its first `num_tokens` tokens, and `rest`, the
    end of the text that no kept token covers (only after a stop string inside a token)."""

    text: str
    num_tokens: int
    rest: str


class TextTracker:
    """Follows one generation token by token.

    Tokens are decoded when their text is asked for; after every token only if the text may stop
    the generation.

    Args:
        stream: a new incremental decoder.
        stops: stop strings.
        patterns: regular expressions; a generation ends where the first match begins.
        min_tokens: stops and matches count only after this many tokens.
    """

    __slots__ = ("_ends", "_forced", "_free", "_held", "_min_tokens", "_num_searched", "_patterns",
                 "_sent_chars", "_sent_tokens", "_stops", "_stream", "_text", "_whole", "stop",
                 "token_ids")  # fmt: skip

    def __init__(
        self,
        stream: TextStream,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        patterns: Sequence[str] = (),
    ) -> None:
        self._stream = stream
        self._stops = tuple(stops)
        self._patterns = [StopPattern(pattern) for pattern in patterns]
        self._min_tokens = min_tokens
        self._text = ""  # of the first len(_ends) tokens
        self.token_ids: list[int] = []
        self.stop: tuple[str, int] | None = None  # the stop string found, and where it begins
        self._ends: list[int] = []  # characters of text after each token
        self._whole: list[bool] = []  # no character is unfinished after that token
        self._held = 0  # characters at the end in which a stop may begin
        self._free = 0  # characters at the beginning in which none begins
        self._num_searched = 0  # characters that the patterns have read
        self._sent_chars = self._sent_tokens = 0
        self._forced: list[int] = []  # numbers of the tokens that were forced

    def push(self, token_id: int, *, forced: bool = False, skip: int = 0) -> bool:
        """Add a token without its first `skip` bytes; True if a stop string is complete."""
        if forced:
            self._forced.append(len(self.token_ids))
        self.token_ids.append(token_id)
        if skip or self._stops or self._patterns:
            num_chars = len(self._text)
            self._read(skip)
            if len(self._text) > num_chars:
                self._look_for_stop()
        return self.stop is not None

    @property
    def forced(self) -> tuple[int, ...]:
        """Indices of the tokens that were forced."""
        return tuple(self._forced)

    @property
    def text(self) -> str:
        """The text so far, without an unfinished character at its end."""
        self._read()
        return self._text

    @property
    def final_text(self) -> str:
        """The text up to the stop string."""
        return self.text if self.stop is None else self._text[: self.stop[1]]

    def take_delta(self) -> Delta | None:
        """The text that became final since the last call; None if there is none."""
        self._read()
        return self._delta(len(self._text) - self._held, len(self.token_ids))

    def finish(self, *, whole: bool = False) -> tuple[Kept, Delta | None]:
        """End the generation: returns what is kept, and the delta that streams do not have yet.

        Args:
            whole: leave out an unfinished character at the end, with its tokens, because the text
                that follows writes it; else it is shown as a replacement character.
        """
        if self.stop is None and whole:
            self._read()
            kept = self._cut(len(self._text))
        elif self.stop is None:
            unread = self.token_ids[len(self._ends) :]
            self._text += self._stream.push(unread) + self._stream.finish()
            self._ends += [len(self._text)] * len(unread)
            self._whole += [True] * len(unread)
            if self._ends:
                self._ends[-1], self._whole[-1] = len(self._text), True
            kept = Kept(self._text, len(self.token_ids), "")
        else:
            kept = self._cut(self.stop[1])
            self._text = kept.text
        return kept, self._delta(len(self._text), kept.num_tokens)

    def _read(self, skip: int = 0) -> None:
        """Decode the tokens since the last call, without the first `skip` bytes."""
        stream = self._stream
        for token_id in self.token_ids[len(self._ends) :]:
            self._text += stream.push_bytes(stream.bytes_of(token_id)[skip:])
            self._ends.append(len(self._text))
            self._whole.append(not stream.is_inside_character)

    def _cut(self, place: int) -> Kept:
        num = len(self._ends)
        while num and not (self._ends[num - 1] <= place and self._whole[num - 1]):
            num -= 1
        end = self._ends[num - 1] if num else 0
        return Kept(self._text[:place], num, self._text[end:place])

    def _delta(self, num_chars: int, num_tokens: int) -> Delta | None:
        """A delta; a token is in the one with the end of its text, and a character is not split."""
        first = self._sent_tokens
        for at in range(first, num_tokens):
            if self._ends[at] > num_chars:
                break
            if self._whole[at]:
                self._sent_tokens = at + 1
        text, self._sent_chars = self._text[self._sent_chars : num_chars], num_chars
        ids = tuple(self.token_ids[first : self._sent_tokens])
        if not text and not ids:
            return None
        return Delta(text, ids, self._num_forced(first, self._sent_tokens))

    def _num_forced(self, first: int, stop: int) -> int:
        return bisect_left(self._forced, stop) - bisect_left(self._forced, first)

    def _look_for_stop(self) -> None:
        text, free = self._text, self._free
        is_early = len(self.token_ids) <= self._min_tokens
        for pattern in self._patterns:
            pattern.read(text[self._num_searched :], may_begin=not is_early)
        self._num_searched = len(text)
        if is_early:
            self._free = len(text)
            return
        found = []
        for stop in self._stops:
            at = text.find(stop, free)
            if at >= 0:
                found.append((at, -len(stop), stop))
        places = [(pattern.match_start, pattern.pattern) for pattern in self._patterns]
        found += [(at, 0, pattern) for at, pattern in places if at is not None]
        if found:
            at, _, stop = min(found)
            self.stop = (stop, at)
            return
        begun = [len(text) - _num_begun(text[free:], stop) for stop in self._stops]
        begun += [pattern.first_begun for pattern in self._patterns]
        self._free = min(begun, default=len(text))
        self._held = len(text) - self._free


def _num_begun(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` with which the text ends."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
