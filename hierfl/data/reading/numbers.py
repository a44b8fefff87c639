"""Numbers and truth values as they are written: decimal marks, separators of thousands, currencies, units."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property

#: blanks between thousands, and apostrophes
_MARKS = {" ": "[ \u00a0\u2000-\u200a\u202f\u205f]", "'": "['\u2018\u2019\u02bc\u00b4`]", ",": ",", ".": r"\."}
#: codes that stand before or after an amount of money
CURRENCIES = (
    "USD", "EUR", "GBP", "CHF", "JPY", "CNY", "RMB", "INR", "KRW", "SEK", "NOK", "DKK", "ISK", "PLN", "CZK", "HUF",
    "RON", "BGN", "RUB", "UAH", "TRY", "ILS", "ZAR", "NGN", "KES", "GHS", "EGP", "MAD", "BRL", "MXN", "ARS", "CLP",
    "COP", "PEN", "CAD", "AUD", "NZD", "SGD", "HKD", "TWD", "THB", "IDR", "MYR", "PHP", "VND", "PKR", "BDT", "LKR",
    "AED", "SAR", "QAR", "Fr", "Fr.", "Rs", "Rs.", "kr", "kr.", "R$", "A$", "C$", "US$", "HK$", "NZ$", "S$",
)  # fmt: skip
#: endings of ordinal numbers, which are no units
_ORDINALS = ("st", "nd", "rd", "th")
_TEXT_MARKS = re.compile(r'="([^"]+)"|\'\s*([-+.\d][^\']*)\'?|[\u2018\u201c"]\s*([-+.\d][^"\']*)[\u2019\u201d"]')
#: signs of other scripts, and the point at half height
_SIGNS_OF_OTHER_SCRIPTS = {
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff0d": "-",
    "\uff0b": "+",
    "\u066b": ".",
    "\u066c": ",",
    "\u00b7": ".",
}
_TRUTHS = frozenset(("True", "TRUE", "true", "False", "FALSE", "false"))
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written.

    Attributes:
        decimal: the decimal mark.
        thousands: the separator of thousands; empty for none.
    """

    decimal: str = "."
    thousands: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        point, digits = re.escape(self.decimal), "[0-9]+"
        if self.thousands:
            mark = _MARKS[self.thousands]
            digits = f"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{2,3}})*{mark}[0-9]{{3}}|[0-9]+)"
        number = f"(?:{digits}(?:{point}[0-9]*)?|{point}[0-9]+)"
        return re.compile(f"[+-]?(?:{number}(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))")

    @cached_property
    def _mark(self) -> re.Pattern[str]:
        return re.compile(_MARKS[self.thousands] if self.thousands else "(?!)")

    def plain(self, cell: str) -> str | None:
        """A number as Python writes it; None where the entry is none."""
        text = cell.strip()
        if not self._pattern.fullmatch(text):
            return None
        return self._mark.sub("", text).replace(self.decimal, ".")


def is_whole(plain: str) -> bool:
    """Whether a number of :meth:`NumberFormat.plain` is a whole one that 64 bits hold."""
    return _WHOLE.fullmatch(plain) is not None


def truth_value(cell: str) -> bool | None:
    """A truth value; None where the entry is none."""
    word = cell.strip()
    return word.lower() == "true" if word in _TRUTHS else None


def without_unit(cell: str) -> tuple[str, str]:
    """What is left of an entry without its currency or unit, and that; the sign in front.

    Two brackets around an amount are a minus. What begins with other letters is no number: A1 is a name.
    """
    text = undecorated(cell).replace("\u2212", "-").replace("\u2013", "-")
    sign = ""
    if text.startswith("(") and text.endswith(")"):
        sign, text = "-", text[1:-1].strip()
    if text[:1] in ("+", "-"):
        sign, text = ("-" if (text[0] == "-") != (sign == "-") else ""), text[1:].lstrip()
    before = re.match(r"[^\d.,'+\-\s]*\.?\s*(?=[.,]?\d|[+-])", text)
    head = before[0] if before else ""
    after = re.search(r"(?<=[\d.,])\s*[^\d\s.,'][^\d,']*[²³]?$", text)
    tail = after[0] if after else ""
    head_unit, tail_unit = head.strip(), tail.strip()
    if head_unit and not _is_currency(head_unit):
        return cell, ""
    if tail_unit and not (_is_currency(tail_unit) or _is_unit(tail_unit)):
        return cell, ""
    number = text[len(head) : len(text) - len(tail)].strip()
    if number[:1] in ("+", "-") and not sign:
        sign, number = number[0].replace("+", ""), number[1:]
    return sign + number, " ".join(part for part in (head_unit, tail_unit) if part)


def undecorated(cell: str) -> str:
    """An entry in ASCII's digits, without the signs that make text of numbers: '5, '5' and ="5".

    What cannot be seen is left out as well, such as a byte order mark or a blank of no width.
    """
    visible = "".join(c for c in cell if unicodedata.category(c) != "Cf").strip()
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else _SIGNS_OF_OTHER_SCRIPTS.get(c, c) for c in visible)
    result = _TEXT_MARKS.fullmatch(text)
    return (result[1] or result[2] or result[3]).strip() if result else text


def _is_currency(text: str) -> bool:
    return text in CURRENCIES or text.upper() in CURRENCIES or (len(text) == 1 and unicodedata.category(text) == "Sc")


def _is_unit(text: str) -> bool:
    if text in ("%", "‰"):
        return True
    letters = all(letter.isalpha() or letter in "/°µ²³. ^%-" for letter in text)
    return letters and len(text) <= 20 and text.lower() not in _ORDINALS and any(c.isalpha() or c == "°" for c in text)
