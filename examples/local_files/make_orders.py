"""Writes a folder of JSON lines to try the pipeline on: python examples/local_files/make_orders.py [FILES]."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

FOLDER = Path("build/local_files/orders")
LINES = 50_000


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    FOLDER.mkdir(parents=True, exist_ok=True)
    dice = random.Random(1)
    for number in range(files):
        ids = range(number * LINES, (number + 1) * LINES)
        orders = ({"id": i, "amount": round(dice.random() * 500, 2), "note": "x" * 60} for i in ids)
        (FOLDER / f"orders-{number:03d}.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders))
    print(f"{files * LINES} orders in {files} files below {FOLDER}")


if __name__ == "__main__":
    main()
