"""The papers' tables, figures and claims as items: each one command, the paper's value beside ours, a verdict by rule.

How an item is added: a row in its paper's table, `items/xiong2020.yaml` and the like, with the fields of an `Item`.

1. `id` is paper/slug, with a table's or figure's number only where it is known. `claim` is one sentence. `published`
   has the paper's numbers, each with where it is known from. `rule` says when the verdict is "same direction", written
   before the runs; `judge` is that rule in names of `rules.RULES`: its conditions, all of which must hold, each with
   its arguments, and what is shown `beside` them.
2. What is run, any of these:
   - `runs`: training runs, each a recipe of the package, named arms (placement and overrides, as they are typed), and
     seeds. A run's folder is named after all that can change its numbers, so items with equal runs share them without
     further ado. Keep recipe, overrides and corpus of two items equal wherever they can be, and choose few steps.
   - `upon: GROUP` in such runs: fine-tunes each model of that group of runs, with its seed.
   - `measure`: a function Context -> rows of `measures/`, as FILE.FUNCTION, in place of one row per run. It finds runs
     (`context.of(arm=...)`), their folders, models and the corpus, and makes any rows; what takes long stands in
     `context.once(NAME, FUNCTION)`, which a killed command does not compute again. It imports torch inside: listing
     items must stay cheap.
   - `missing`: why it is not run at all; the item is listed with its reason.
3. `corpus` is one of `items/corpora.yaml`, or glue/TASK. It says which folder below `--data` it wants, what it sets in
   a recipe, and what stands in for it without `--data`; where nothing can, the item is "not run: no data".
4. `charts` draw columns of the rows; `run_charts` names charts of a page of runs ("validation", "gradients", ..) drawn
   from the item's run folders.
5. `full` names the recipe of the paper's size, for `--full`.

A row is a flat dict: text and numbers. `arm` and `seed` are the columns by which rules pair rows; a run's own row has
`group`, `arm`, `placement`, `lr`, `warmup`, `seed`, `outcome` and the numbers of its outcome.json.

OUT/
  cells/NAME/          the runs, shared between items; ledger.jsonl beside them
  items/ID/            result.json, rows.csv, item.html and its figures, kept/ for what `once` computed
"""
