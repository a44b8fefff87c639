"""CIFAR's files, which are Python pickles, read as data: nothing that they name is imported or called.

A pickle is a program for a small stack machine. The one here knows the instructions that build numbers, text, lists,
tuples and dictionaries, and takes five names, those by which numpy says "an array of this type, this shape and these
bytes", for words. Everything else is refused. So the files need not be trusted, and any that parse are read: of a
download, torchvision compares the check sum of the whole archive.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: names that may occur, and the words that they become
_WORDS = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "numpy._core.numeric _frombuffer": "frombuffer",
    "numpy.core.numeric _frombuffer": "frombuffer",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy.core.multiarray _reconstruct": "reconstruct",
}


@dataclass(frozen=True)
class _Word:
    name: str


@dataclass
class Unset:
    """What numpy makes before its state is said: a dtype of this code, or an array that ``value`` will be."""

    kind: str
    value: Any = None


_MARK = _Word("mark")
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
#: Python 2's strings are bytes, which pickletools shows as Latin-1
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_STRINGS = ("BINSTRING", "SHORT_BINSTRING")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Machine:
    """Stack, memo and the instructions. Anything unexpected raises ValueError, or what Python raises by itself.

    Args:
        budget: bytes that may be made beside those of the file (a few instructions could make the same ones for ever).
    """

    def __init__(self, budget: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.budget = budget
        self.does: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self.stack.append(_MARK),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "TUPLE": lambda _: self.stack.append(tuple(self._marked())),
            "APPEND": lambda _: self._append(self._pop(1)),
            "APPENDS": lambda _: self._append(self._marked()),
            "SETITEM": lambda _: self._set(self._pop(2)),
            "SETITEMS": lambda _: self._set(self._marked()),
            "MEMOIZE": lambda _: self._memoize(len(self.memo)),
            "BINPUT": self._memoize, "LONG_BINPUT": self._memoize,
            "BINGET": self._recall, "LONG_BINGET": self._recall,
            "GLOBAL": lambda word: self.stack.append(_word(word)),
            "STACK_GLOBAL": lambda _: self.stack.append(_word(" ".join(map(text_of, self._pop(2))))),
            "REDUCE": lambda _: self._reduce(*self._pop(2)),
            "BUILD": lambda _: self._build(*self._pop(1)),
        }  # fmt: skip

    def run(self, program: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> Any:
        """The value that the program leaves."""
        for instruction, argument, _ in program:
            name = instruction.name
            if name in _VALUES:
                self.stack.append(_VALUES[name])
            elif name in _NUMBERS or name in _TEXTS:
                self.stack.append(argument)
            elif name in _STRINGS:
                self.stack.append(argument.encode("latin-1"))
            elif name in _BYTES:
                self.stack.append(bytes(argument))
            elif name in _TUPLES:
                self.stack.append(tuple(self._pop(_TUPLES[name])))
            elif name == "STOP":
                (value,) = self.stack
                return value
            elif name in self.does:
                self.does[name](argument)
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"the instruction {name} is none of an array's")
        raise ValueError("it has no end")

    def _pop(self, count: int) -> list[Any]:
        taken = self.stack[len(self.stack) - count :] if count else []
        if len(taken) < count or any(value is _MARK for value in taken):
            raise ValueError("an instruction lacks its arguments")
        del self.stack[len(self.stack) - count :]
        return taken

    def _marked(self) -> list[Any]:
        taken: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def _memoize(self, position: int) -> None:
        self.memo[position] = self.stack[-1]

    def _recall(self, position: int) -> None:
        self.stack.append(self.memo[position])

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("something is appended to what is no list")
        self.stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(pairs) % 2:
            raise ValueError("an entry is set in what is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][text_of(key)] = value

    def _reduce(self, what: Any, arguments: Any) -> None:
        name = what.name if isinstance(what, _Word) else ""
        if name == "encode":  # Python 3's bytes in Python 2's protocol
            text, coding = arguments
            self.budget -= len(text)
            if coding not in ("latin1", "latin-1") or self.budget < 0:
                raise ValueError("bytes are written in an unknown way, or too many")
            self.stack.append(text.encode("latin-1"))
        elif name == "dtype":
            self.stack.append(Unset("dtype", _dtype(arguments[0])))
        elif name == "reconstruct" and arguments[0] == _Word("ndarray"):
            self.stack.append(Unset("array"))
        elif name == "frombuffer":
            raw, dtype, shape, order = arguments
            self.stack.append(Unset("array", _array(raw, dtype, shape, order == "F")))
        else:
            raise ValueError("something else than an array is made")

    def _build(self, state: Any) -> None:
        target = self.stack[-1]
        if not isinstance(target, Unset):
            raise ValueError("state is given to what has none")
        if target.kind == "dtype":
            _, byte_order, *others = state
            if text_of(byte_order) not in ("|", "<", ">", "=") or any(value is not None for value in others[:3]):
                raise ValueError("an array holds something else than numbers")
            target.value = target.value.newbyteorder(text_of(byte_order))
        else:
            _, shape, dtype, fortran, raw = state
            target.value = _array(raw, dtype, shape, bool(fortran))


def text_of(value: Any) -> str:
    """A string of Python 2 or 3; refuses anything else."""
    if not isinstance(value, (str, bytes)):
        raise ValueError("a name is no text")
    return value if isinstance(value, str) else value.decode("latin-1")


def _word(word: str) -> _Word:
    if word not in _WORDS:
        raise ValueError(f"it names {word.replace(' ', '.')[:60]}, which is none of an array's: it may be hostile")
    return _Word(_WORDS[word])


def _dtype(code_given: Any) -> np.dtype:
    code = text_of(code_given)
    if not re.fullmatch(r"[iu][1248]", code):
        raise ValueError("an array holds something else than whole numbers")
    return np.dtype(code)


def _array(raw: Any, dtype: Any, shape: Any, fortran: bool) -> np.ndarray:
    """The array of these bytes; shares them."""
    if not (isinstance(dtype, Unset) and dtype.kind == "dtype" and isinstance(raw, bytes)):
        raise ValueError("an array is not made of bytes")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("an array has no shape")
    if math.prod(shape) * dtype.value.itemsize != len(raw):
        raise ValueError(f"shape {shape[:8]} of {dtype.value} is declared, {len(raw)} bytes are there")
    return np.frombuffer(raw, dtype.value).reshape(shape, order="F" if fortran else "C")
