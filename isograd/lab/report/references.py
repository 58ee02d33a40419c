"""The papers of placements, as BibTeX."""

import re
from collections.abc import Iterable


def bibtex(papers: Iterable[str | None]) -> str:
    """An entry for each of these papers, as placements name them; what has no year is a note.

    >>> print(bibtex(["Wang et al. 2022, arXiv 2203.00555", "Wang et al. 2022, arXiv 2203.00555, ablations"]), end="")
    @misc{wang2022-2203.00555,
      author = {Wang and others},
      year = {2022},
      eprint = {2203.00555},
      archivePrefix = {arXiv},
      note = {Wang et al. 2022, arXiv 2203.00555},
    }
    """
    entries: dict[str, str] = {}
    for paper in filter(None, papers):
        begin = re.match(r"(.+?) (\d{4})", paper)
        author, year = begin.groups() if begin else (paper, "")
        eprint = next(iter(re.findall(r"arXiv (\d+\.\d+)", paper)), "")
        fields = {"author": author.replace(" et al.", " and others") if year else "", "year": year, "eprint": eprint}
        fields |= {"archivePrefix": "arXiv" if eprint else "", "note": paper}
        key = "-".join(filter(None, ["".join(re.findall(r"\w+", author.split(" et al")[0])).lower() + year, eprint]))
        body = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
        entries.setdefault(key, f"@misc{{{key},\n{body}}}\n")
    return "\n".join(entries.values())
