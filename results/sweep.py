"""The main tables of a sweep, as Markdown on standard output:

    python -m results.sweep multirun/DATE/TIME [vary=KEY,KEY]

The same tables as in results.report, without files. Runs that did not finish are named on standard
error and left out.
"""

from __future__ import annotations

import sys

from results import arguments
from results.comparison import Comparison
from results.load import load, unchecked
from results.tables import main_tables


def main() -> int:
    usage = "results.sweep FOLDER [vary=KEY,KEY]"
    parsed = arguments.parse(sys.argv[1:], ("vary",), usage)
    if parsed is None:
        return 2
    (folder,), options = parsed
    try:
        loaded = load(folder)
        for left in loaded.left_out:
            print(f"left out: {left}", file=sys.stderr)
        meant = {key for key in options.get("vary", "").split(",") if key}
        comparison = Comparison(loaded.runs, loaded.swept | meant)
        tables = main_tables(comparison, comparison.target())
    except ValueError as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    for line in unchecked(loaded.runs):
        print(f"note: {line}", file=sys.stderr)
    for table in tables:
        print(f"{table.title}\n\n{table.markdown()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
