"""`isograd show recipes`, `isograd show RECIPE`: what comes with isograd, by name."""

from typing import Annotated, TypedDict

from rich.markup import escape

from isograd.cli.console import Result, print_table
from isograd.errors import IsogradError
from isograd.lab.recipes import path_of, recipes

RECIPES = "recipes"


def _is_recipe(name: str) -> bool:
    try:
        return name == RECIPES or path_of(name).suffix == ".yaml"
    except IsogradError:
        return False


TAKES = {"show_recipe": _is_recipe}


class RecipeShown(TypedDict):
    """A recipe of the package: what it shows, the command, its file."""

    about: str
    command: str
    file: str


def show_recipe(recipe: str = RECIPES) -> Annotated[Result, dict[str, RecipeShown]]:
    """Print the recipes of the package, or one of them.

    examples:
      isograd show recipes
      isograd show xiong2020/iwslt14-small

    Every verb that reads a recipe finds them by name, from any folder.

    Args:
        recipe: "recipes" lists all; of one its comment says what it shows, which data it needs, and the commands
    """
    wanted = None if recipe == RECIPES else path_of(recipe)
    found = [one for one in recipes() if wanted in (None, one.path)]
    content = {one.name: {"about": one.about, "command": one.command, "file": str(one.path)} for one in found}

    def show() -> None:
        if wanted:
            print(wanted.read_text(encoding="utf-8"), end="")
            return
        print_table(["recipe", "what it shows"], [[escape(one.name), escape(one.about)] for one in found], left=2)
        print("\n'isograd show NAME' prints one; 'isograd train NAME key=value ...' runs it.")

    return Result(content, show)
