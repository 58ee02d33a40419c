"""The sentences of a Markdown page, and the numbers in them."""

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_BLOCK = re.compile(r"^(?:#|[-*] |\d+\. |\||>)")  # what begins a block of its own
_RULER = re.compile(r"^\|[\s|:-]+\|$")
_END = re.compile(r"(?<=[.!?])(?<!et al\.)(?<!e\.g\.)[*_]*\s+(?=[A-Z`*\"(\[0-9])")

_EMPHASIS = re.compile(r"\*{1,2}(?=\w)|(?<=[\w.])\*{1,2}")
_CODE = re.compile(r"`[^`]*`")
_CITED = re.compile(r"\bet al\. (?:19|20)\d\d[a-z]?")
_WORDS = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty thirty forty fifty sixty hundred thousand million half twice dozen"
)
_NUMBER = re.compile(rf"(?<![\w.-])\d[\d,.]*(?:e[+-]?\d+)?|\b(?:{'|'.join(_WORDS.split())})\b", re.IGNORECASE)


def sentences(page: str) -> list[str]:
    """Every sentence, heading, list item and row of a table, without code blocks, pictures and targets of links.

    >>> sentences("# Head\\n\\nOne [line](a.md)\\nand on. *Two* `x=1`.\\n\\n- item\\n\\n| a |\\n|---|\\n| 1 |\\n")
    ['# Head', 'One line and on.', 'Two `x=1`.', '- item', '| a |', '| 1 |']
    """
    return [_EMPHASIS.sub("", one) for block in _blocks(page) for one in _END.split(block) if one]


def _blocks(page: str) -> Iterator[str]:
    block: list[str] = []
    for line in [*_IMAGE.sub("", _FENCE.sub("", page)).splitlines(), ""]:
        line = _LINK.sub(r"\1", line).strip()
        if (not line or _BLOCK.match(line)) and block:
            yield " ".join(block)
            block = []
        if line and not _RULER.match(line):
            block.append(line)


def numbers(sentence: str) -> list[str]:
    """The numbers that it says, in digits or words; a year of a citation, code and names such as GPT-2 say none.

    >>> numbers("Of 1,000 lines two are lost at 1e-3 (Xiong et al. 2020), as in `lr=3` of GPT-2 and Multi30k.")
    ['1,000', 'two', '1e-3']
    """
    plain = _CITED.sub("", _CODE.sub("", sentence))
    return [found.rstrip(".,") for found in _NUMBER.findall(plain)]
