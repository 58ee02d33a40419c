"""Where the corpora that items want lie: below `--data FOLDER`, on the hub, and what stands in for them without."""

from pathlib import Path
from typing import Any

from isograd.lab.recipes import read_table
from isograd.papers.reproduce.item import ItemText

HUB = Path("hub")  # `--data hub`: data sets by their names
_CORPORA = Path(__file__).with_name("items") / "corpora.yaml"


def found(corpus: ItemText, data: Path | None) -> tuple[dict[str, Any] | None, str]:
    """The settings that this corpus makes, and its name; None with the reason where it is not there."""
    if data is not None and data.is_file():
        return _own_text(corpus, data)
    if data == HUB:
        return _by_name(corpus)
    if data is None:
        if corpus.embedded is None:
            return None, f"no data: --data FOLDER with {corpus.folder}/ ({corpus.name})"
        return dict(corpus.embedded), corpus.embedded_name
    folder = (data / corpus.folder).resolve()
    for name in corpus.files:
        if not (folder / name).exists():
            return None, f"no data: {corpus.folder}/{name} is not there below --data"
    return {key: _filled(value, str(folder)) for key, value in corpus.settings.items()}, corpus.name


def _by_name(corpus: ItemText) -> tuple[dict[str, Any] | None, str]:
    """As a data set on the hub; not in the corpus itself, since a result of the same text is the same result."""
    if corpus.folder == "glue":
        return {"glue.source": "nyu-mll/glue"}, corpus.name
    (row,) = (row for row in read_table(_CORPORA).values() if row["name"] == corpus.name)
    if "hub" not in row:
        return None, f"no data: no name on the hub; --data FOLDER with {corpus.folder}/"
    return row["hub"], row.get("hub_name", corpus.name)


def _own_text(corpus: ItemText, file: Path) -> tuple[dict[str, Any] | None, str]:
    """One plain text in the place of the corpus, of which the last twentieth is held out."""
    if corpus.embedded is None or "data.source" not in corpus.embedded:
        return None, f"no data: {file.name} is one text, and this item reads {corpus.folder}/ below --data FOLDER"
    return {**corpus.embedded, "data.source": str(file.resolve())}, f"the text {file.name}"


def _filled(value: Any, folder: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, folder) for one in value]
    return value.replace("{folder}", folder) if isinstance(value, str) else value
