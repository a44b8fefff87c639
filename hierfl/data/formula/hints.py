"""A formula that cannot be read, in the way in which it can: what R, lme4 and patsy write otherwise.

Nothing here is evaluated, and no formula is changed: a message shows the rewritten one, if that can be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

#: functions that have other names here
RENAMED = {
    **dict.fromkeys(("category", "Categorical", "categorical"), "C"),
    **dict.fromkeys(("as.numeric", "as.integer", "as.double"), "I"), "ln": "log", "np.ln": "log",
    "ifelse": "where", **dict.fromkeys(("pmin", "min"), "minimum"), **dict.fromkeys(("pmax", "max"), "maximum"),
    **dict.fromkeys(("zscore", "standardise", "scaled"), "standardize"), "centre": "center", "round": "rint",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "ceiling": "ceil", "fabs": "abs",
    "ns": "cr", "rcs": "cr",
}  # fmt: skip
#: notes on what has no other way of writing
NOTES = (
    (r"^\s*[\w.]+\s*/\s*[\w.]+\s*~", "of shares write p(successes, trials) ~ with family binomial"),
    (r"(?<![\w.])(ns|rcs)\s*\(", "cr is a natural cubic spline, with knots of its own; ns is read with knots=[...]"),
    (r"(?<![\w.])(us|diag|ar1|cs)\s*\(", "random effects are (1 + x | site); without correlations (1 + x || site)"),
    (r"(?<![\w.])(te|ti|t2|gp)\s*\(", "smooth terms are of one column: s(x, k=10), or tp(x, df=5), bs, cr, cc"),
    (r"(?<![\w.])(lag|diff|cumsum|cumprod|shift)\s*\(", "what needs the order of rows is a column of the table first"),
    (r"(?<![\w.])Surv\s*\(", "a time is the response alone, and --event COLUMN or event='COLUMN' says how it ended"),
    (r"(?<![\w.])(levels|contrasts|labels)\s*=|relevel", "another reference level is T(g, ref='b')"),
    (r"&|(?<![\w.])(and|or|not)(?![\w.])|%in%", "conditions are joined as numbers: I((x > 1) * (z < 2))"),
    (r"(?<![\w.)`])\.(?![\w.])", "'.' stands for no columns here: name them, joined by +"),
    (r"\[", "only a response has a level in brackets; among the effects it is I(g == 'a')"),
)  # fmt: skip
#: signs of word processors, and what they are here: quotes, tildes, times, minus, blanks
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'), **dict.fromkeys("\u2018\u2019\u201a", "'"),
        **dict.fromkeys("\u223c\u02dc\uff5e", "~"), **dict.fromkeys("\u00d7\u2217", "*"),
        **dict.fromkeys("\u2212\u2013", "-"), **dict.fromkeys("\u00a0\u2009\u202f\u2007", " "),
        "\u00b2": "**2", "\u00b3": "**3", "^": "**", "\u2265": ">=", "\u2264": "<=", "\u2260": "!=",
    }
)  # fmt: skip
#: the substitute for a quoted part while the rest is rewritten
_FIRST, _LAST = "\ue000", "\uefff"
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_NAME = rf"(?:[^\W\d_][\w.]*|[{_FIRST}-{_LAST}])"
_TERM = rf"(?<![\w.)`]){_NAME}(?:\([^()]*\))?(?![\w.(])"
_SIDE = rf"(?:{_TERM}|-?(?<![\w.]){_NUMBER}(?![\w.]))"
_OTHER = r"(?!(?:0|1)(?![\w.]))"
_SUMS = re.compile(
    rf"{_SIDE}\s*(?:==|!=|<=|>=|<|>)\s*{_SIDE}"
    rf"|{_TERM}\s*(?:\*\*|[*/])\s*-?{_NUMBER}(?![\w.])"
    rf"|(?<![\w.]){_NUMBER}\s*[*/]\s*{_TERM}"
    rf"|{_TERM}\s*[-+]\s*{_OTHER}{_NUMBER}(?![\w.])(?!\s*[*/])"
)


def hint(text: str, columns: Collection[str], reads: Callable[[str], bool]) -> tuple[str, str]:
    """What to write instead of a formula that cannot be read, and a note; empty where there is none.

    Args:
        text: of the formula.
        columns: of the table, if they are known.
        reads: whether a formula can be read.
    """
    notes = [note for pattern, note in NOTES if re.search(pattern, _QUOTED.sub("''", text))]
    other = rewritten(text, columns)
    if other != text and reads(other):
        return other, notes[0] if notes and notes[0].startswith(("cr ", "a time")) else ""
    return "", notes[0] if notes else ""


def rewritten(text: str, columns: Collection[str] = ()) -> str:
    """A formula with everything replaced that is known to be written otherwise; the text itself where nothing is."""
    text = text.translate(_CHARACTERS)
    text = re.sub(r"(?<![\w.])Q\(\s*(['\"])([^'\"`]*)\1\s*\)", r"`\2`", text)
    text = re.sub(r"(?<![\w.])s\(\s*([\w.]+)\s*,\s*bs\s*=\s*(['\"])re\2\s*\)", r"(1 | \1)", text)
    text = backquoted(text, columns)
    quoted: list[str] = []

    def keep(match: re.Match[str]) -> str:
        quoted.append(match.group())
        return chr(ord(_FIRST) + len(quoted) - 1)

    text = _QUOTED.sub(keep, text)
    if len(quoted) > ord(_LAST) - ord(_FIRST):
        return text
    text = _in_ours(text, columns, quoted)
    text = _summed(text)
    return re.sub(f"[{_FIRST}-{_LAST}]", lambda match: quoted[ord(match.group()) - ord(_FIRST)], text)


def _in_ours(text: str, columns: Collection[str], quoted: list[str]) -> str:
    """Names and signs, one by one."""
    if "~" not in text:
        text = re.sub(r"^([^=<>!()]*)=(?!=)", r"\1~", text)
    text = re.sub(r"[^\W\d]\w*\$", "", text)
    text = re.sub(rf"(?<![\w.])({_NUMBER}[eE][-+]?\d+)(?![\w.])", _plain_number, text)
    text = re.sub(r"(?<![\w.])(?:np\.)?(?:pow|power)\(([^(),]+),\s*([^(),]+)\)", r"I(\1**\2)", text)
    text = re.sub(r"(?<![\w.])log\(([^(),]+),\s*(?:base\s*=\s*)?(10|2)\)", r"log\2(\1)", text)
    text = re.sub(r"(?<![\w.])logit\(([^(),]+)\)", r"log(\1/(1 - \1))", text)
    text = re.sub(r"(?<![\w.])interaction\(([^(),]+),\s*([^(),]+)\)", r"\1:\2", text)
    text = re.sub(r"(?<![\w.])Surv\(([^(),]+),[^()]*\)", r"\1", text)
    text = re.sub(r"(?<![\w.])Treatment\(\s*(?:reference|ref)\s*=\s*", "Treatment(", text)
    text = re.sub(r"(?<![\w.])contr\.(sum|treatment)(?![\w.])", lambda match: match[1].capitalize(), text)
    text = re.sub(r"(?<![\w.])([^\W\d_][\w.]*)(?=\()", lambda match: RENAMED.get(match[1], match[1]), text)
    text = re.sub(r"(?<![\w.])cr\(([^(),]+),\s*(\d+)\)", r"cr(\1, df=\2)", text)
    if columns:
        others = [name for name in columns if not _occurs(name, text) and f"`{name}`" not in quoted]
        named = " + ".join(map(written, others))
        text = re.sub(rf"(?<![\w.){_FIRST}-{_LAST}])\.(?![\w.])", lambda match: named, text)
    return text


def _summed(text: str) -> str:
    """Comparisons and arithmetic with numbers outside of functions, in I(...)."""
    result, end = "", 0
    for match in _SUMS.finditer(text):
        taken_away = text[: match.start()].rstrip().endswith("-")  # what is taken away has to be an effect before it
        if match.start() >= end and not taken_away and not _inside_call(text, match.start()):
            result += f"{text[end : match.start()]}I({match.group()})"
            end = match.end()
    return result + text[end:]


def _inside_call(text: str, position: int) -> bool:
    """Whether a position in a formula is among the arguments of a function, or in braces."""
    inside: list[bool] = []
    for k, letter in enumerate(text[:position]):
        if letter in "({":
            inside.append(letter == "{" or bool(re.search(r"[\w.]\s*$", text[:k])))
        elif letter in ")}" and inside:
            inside.pop()
    return any(inside)


def _plain_number(match: re.Match[str]) -> str:
    number = float(match[1])
    return f"{number:.20f}".rstrip("0").rstrip(".") if 1e-15 < abs(number) < 1e15 else match[1]


def backquoted(text: str, columns: Collection[str]) -> str:
    """A formula with the columns that have odd names between backquotes.

    Args:
        text: of the formula.
        columns: of the table.
    """
    odd = sorted((name for name in columns if written(name) != name and "`" not in name), key=len, reverse=True)
    for name in odd:
        parts = re.split(r"(`[^`]*`|'[^']*'|\"[^\"]*\")", text)
        pattern = rf"(?<![\w.`]){re.escape(name)}(?![\w.`])"
        text = "".join(part if k % 2 else re.sub(pattern, lambda match: f"`{match[0]}`", part)
                       for k, part in enumerate(parts))  # fmt: skip
    return text


def written(name: str) -> str:
    """A column as a formula has it."""
    return name if re.fullmatch(r"[^\W\d_][\w.]*", name) else f"`{name}`"


def _occurs(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text) is not None
