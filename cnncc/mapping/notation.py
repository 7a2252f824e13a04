"""The notation of mappings: what is written, as plain records, from and to text. docs/mapping.md describes it.

    n > k':2 > [h'||4@rows w'||4@cols] > c > weight@rf*2 > ifmap@rf*2 > {s > r > k''}

`read` and `canonical_text` are for every text; what one leaves out is None in its records. Texts that say all of a
`Mapping` are those of `text.py`, one to one. `passes/_scheduling/mapping_completion.py` completes others for a layer
and an array.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NoReturn

from cnncc.mapping.mapping import AXES, DIMS, LANES, MEMORIES, MOST, OPERANDS

SHOWN = 60  # characters of a text on each side of what is wrong with it
ASCII = {">": ">", "||": "||", "{": "{", "}": "}"}
UNICODE = {">": "▷", "||": "∥", "{": "|", "}": "|"}
SAME = {"▷": ">", "∥": "||", "‖": "||", "′": "'", "’": "'", "″": "''"}
TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]+)(?P<primes>['′’″]*)|(?P<number>[0-9]+)|(?P<sign>\|\||[▷∥‖>|{}\[\]:@*]))")


class NotationError(ValueError):
    """What is wrong with a text, and where: characters `at` to `end` of it."""

    def __init__(self, message: str, text: str, at: int, end: int) -> None:
        super().__init__(message)
        self.message, self.text, self.at, self.end = message, text, at, end

    @property
    def excerpt(self) -> tuple[str, str]:
        """The text around the place, and marks under it."""
        first, last = max(self.at - SHOWN, 0), self.at + SHOWN
        before, after = "…" * (first > 0), "…" * (last < len(self.text))
        marks = "^" * max(min(self.end, last) - self.at, 1)
        line = " ".join(self.text[first:last].splitlines())
        return f"{before}{line}{after}", " " * (len(before) + self.at - first) + marks

    def __str__(self) -> str:
        return "\n".join((self.message, *(f"  {line}" for line in self.excerpt)))


@dataclass(frozen=True)
class LoopItem:
    """A loop as it is written; None (of an axis: empty) is what is left out.

    level: loops with the same number other than 0 run side by side on one level of parallelism.
    """

    dim: str
    step: int | None = None
    level: int = 0
    pes: int | None = None
    axis: str = ""
    keep: bool = False
    place: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class FetchItem:
    """A stage as it is written: of the loops inside the place where it stands."""

    operand: str
    memory: str
    buffers: int = 1
    place: tuple[int, int] = field(default=(0, 0), compare=False)


Item = LoopItem | FetchItem


# -- from text ---------------------------------------------------------------------------------------------------------


def suggestion(name: str, known: Collection[str]) -> str:
    """Which of the known names was meant, or what they all are."""
    matches = difflib.get_close_matches(name.lower(), known, 1)
    return f"did you mean '{matches[0]}'?" if matches else f"there are {', '.join(known)}"


def read(text: str) -> tuple[Item, ...]:
    """What a text says, item by item. Raises NotationError where it breaks the grammar of docs/mapping.md."""
    items = tuple(_Reader(text).items())
    _check_primes(text, items)
    return items


@dataclass(frozen=True)
class _Token:
    kind: str  # name, number, sign, or "" at the end
    text: str
    place: tuple[int, int]

    def __str__(self) -> str:
        return f"'{self.text}'" if self.kind else "the end"


class _Reader:
    """One pass over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.next = 0
        self.levels = 0

    def _tokens(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = TOKEN.match(self.text, at)
            if match is None:
                # The sign is to blame, not the blanks before it.
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                self._refuse(f"'{self.text[at]}' has no meaning here", (at, at + 1))
            # Primes are a group of their own, the last one of a name that has some. The name's place includes them.
            kind = "name" if match["name"] else match.lastgroup or ""
            yield _Token(kind, SAME.get(match[kind], match[kind]), (match.start(kind), match.end()))
            at = match.end()
        yield _Token("", "", (end, end + 1))

    def _refuse(self, message: str, place: tuple[int, int]) -> NoReturn:
        raise NotationError(message, self.text, *place)

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def _take(self, *signs: str) -> str:
        """The next token, if it is one of these signs; else the empty string."""
        if self.token.kind != "sign" or self.token.text not in signs:
            return ""
        self.next += 1
        return self.tokens[self.next - 1].text

    def items(self) -> Iterator[Item]:
        """Elements with `>` between them, which may be left out after `||`."""
        if not self.token.kind:
            return
        level, boxed = 0, ""
        while True:
            # The sign `|` opens a box and closes it: inside of one it cannot open another.
            if not boxed and (opened := self._take("{", "|")):
                boxed = {"{": "}", "|": "|"}[opened]
            if self._take("["):
                yield from self._group(bool(boxed))
                level = 0
            else:
                item = self._item(bool(boxed), level)
                level = item.level if isinstance(item, LoopItem) else 0
                yield item
            if boxed and self._take(boxed):
                boxed = ""
            if not self.token.kind and not boxed:
                return
            if self._take(">"):
                level = 0
            # Loops side by side may go on without a `>`.
            elif not level:
                close = f" or '{boxed}'" if boxed else ""
                self._refuse(f"expected '>'{close} between loops, found {self.token}", self.token.place)

    def _group(self, boxed: bool) -> Iterator[Item]:
        if boxed:
            self._refuse("loops in a box run in time: no [ ] there", self.tokens[self.next - 1].place)
        level = 0
        while True:
            item = self._item(False, level)
            if not (isinstance(item, LoopItem) and item.level):
                name = item.dim if isinstance(item, LoopItem) else ""
                hint = f": write {name}||" if name else ""
                self._refuse(f"in [ ] stand parallel loops, without '>'{hint}", item.place)
            level = item.level
            yield item
            if self._take("]"):
                return
            if self.token.text == ">" or not self.token.kind:
                what = "expected a parallel loop or ']', as loops in [ ] are one level"
                self._refuse(f"{what}, found {self.token}", self.token.place)

    def _item(self, boxed: bool, level: int) -> Item:
        """One loop or stage; a parallel loop joins `level`, or where that is 0 opens the next."""
        name = self.token
        if name.kind != "name":
            self._refuse(f"expected a loop ({' '.join(DIMS)}) or a stage (weight@rf), found {name}", name.place)
        self.next += 1
        if self.token.text == "@" and name.text not in DIMS:
            return self._stage(name, boxed)
        if name.text not in DIMS:
            also = [f"{operand}@rf" for operand in difflib.get_close_matches(name.text.lower(), OPERANDS, 1)]
            hint = f"did you mean the stage '{also[0]}'?" if also else suggestion(name.text, DIMS)
            self._refuse(f"no loop '{name.text}': {hint}", name.place)
        step = self._number("a tile size") if self._take(":") else None
        if self.token.text == "@":
            self._refuse(f"a loop on an axis is parallel: {name.text}||@rows", self.token.place)
        parallel = self._take("||")
        if not parallel:
            return LoopItem(name.text, step, keep=boxed, place=name.place)
        pes = self._number("") if self.token.kind == "number" else None
        axis = self._name("axis", AXES) if self._take("@") else ""
        if boxed and axis != LANES:
            what = f"a loop in a box runs in time: {name.text} without '||', or on lanes: {name.text}||@lanes"
            self._refuse(what, name.place)
        if not level:
            self.levels += 1
        return LoopItem(name.text, step, level or self.levels, pes, axis, boxed, name.place)

    def _stage(self, name: _Token, boxed: bool) -> FetchItem:
        if name.text not in OPERANDS:
            self._refuse(f"no operand '{name.text}': {suggestion(name.text, OPERANDS)}", name.place)
        if boxed:
            self._refuse("a stage stands around the box, not in it", name.place)
        self.next += 1
        memory = self._name("memory", MEMORIES)
        buffers = self._number("a number of buffers") if self._take("*") else 1
        return FetchItem(name.text, memory, buffers, name.place)

    def _name(self, what: str, known: Collection[str]) -> str:
        token = self.token
        if token.kind != "name":
            self._refuse(f"expected {' or '.join(known)}, found {token}", token.place)
        if token.text not in known:
            self._refuse(f"no {what} '{token.text}': {suggestion(token.text, known)}", token.place)
        self.next += 1
        return token.text

    def _number(self, what: str) -> int:
        token = self.token
        if token.kind != "number":
            self._refuse(f"expected {what}, found {token}", token.place)
        # Digits are counted first, as `int` raises an error of its own for thousands of them.
        if len(token.text) > len(str(MOST)) or not 1 <= int(token.text) <= MOST:
            self._refuse(f"{token.text[:20]} is not in 1 to {MOST}", token.place)
        self.next += 1
        return int(token.text)


def _check_primes(text: str, items: Sequence[Item]) -> None:
    """The j-th of several loops over a dimension has j primes; a single one may have one. Raises NotationError."""
    terms = [item for item in items if isinstance(item, LoopItem)]
    count, seen = Counter(term.dim for term in terms), Counter[str]()
    for term in terms:
        seen[term.dim] += 1
        primes = text[slice(*term.place)][1:]
        has = sum(len(SAME.get(prime, prime)) for prime in primes)
        if has != seen[term.dim] and (count[term.dim] > 1 or has):
            names = ", ".join(term.dim + "'" * (i + 1) for i in range(count[term.dim]))
            loops = f"{count[term.dim]} loops over {term.dim} are" if count[term.dim] > 1 else "a single loop is"
            message = f"{loops}, from outside, {names if count[term.dim] > 1 else term.dim}"
            raise NotationError(message, text, *term.place)


# -- to text -----------------------------------------------------------------------------------------------------------


def canonical_text(items: Sequence[Item], unicode: bool = False) -> str:
    """The canonical text of these items: ASCII, or with the textbook's signs."""
    signs = UNICODE if unicode else ASCII
    words = list(_words(items, signs["||"]))
    parts: list[str] = []
    for (boxed, level, _), run in groupby(enumerate(items), key=_written_as_one):
        inside = [words[number] for number, _ in run]
        if boxed:
            parts.append(signs["{"] + f" {signs['>']} ".join(inside) + signs["}"])
        else:
            parts.append(f"[{' '.join(inside)}]" if level and len(inside) > 1 else inside[0])
    return f" {signs['>']} ".join(parts)


def _written_as_one(numbered: tuple[int, Item]) -> tuple[bool, int, int]:
    """A key that is equal for the loops of a box, or of a level; any other item has a key of its own."""
    number, item = numbered
    if isinstance(item, LoopItem) and (item.keep or item.level):
        return item.keep, 0 if item.keep else item.level, -1
    return False, 0, number


def _words(items: Sequence[Item], parallel: str) -> Iterator[str]:
    """Each loop or stage by itself."""
    count = Counter(item.dim for item in items if isinstance(item, LoopItem))
    seen = Counter[str]()
    for item in items:
        if isinstance(item, FetchItem):
            yield f"{item.operand}@{item.memory}" + (f"*{item.buffers}" if item.buffers > 1 else "")
            continue
        seen[item.dim] += 1
        primes = "'" * seen[item.dim] if count[item.dim] > 1 else ""
        step = "" if item.step is None else f":{item.step}"
        pes, axis = "" if item.pes is None else str(item.pes), f"@{item.axis}" if item.axis else ""
        yield f"{item.dim}{primes}{step}" + (f"{parallel}{pes}{axis}" if item.level else "")
