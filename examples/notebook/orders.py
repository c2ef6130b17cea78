# %% [markdown]
# # Orders: try a processor, run a pipeline, look at its output
#
# A notebook as a script: editors and Jupytext show each part after `# %%` as a cell. It also runs as it is:
# `python examples/notebook/orders.py`. Everything is written below `build/notebook`.

# %%
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

import holdfast
from holdfast.testing import run_processor

FOLDER = Path("build/notebook")

# %% [markdown]
# Some orders, of which one has no amount. A run goes on where the last one has stopped, so the store begins anew, too.

# %%
shutil.rmtree(FOLDER, ignore_errors=True)
(FOLDER / "orders").mkdir(parents=True)
ORDERS: list[dict[str, float]] = [{"id": 1, "amount": 1.5}, {"id": 2}, {"id": 3, "amount": 0.25}]
(FOLDER / "orders" / "today.jsonl").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))

# %% [markdown]
# A processor is a function of DataFrames. An order without an amount becomes a dead letter.


# %%
def in_cents(orders: DataFrame) -> DataFrame:
    missing = holdfast.fault("amount is missing", when=sql.col("amount").isNull())
    return orders.withColumns({"cents": (sql.col("amount") * 100).cast("bigint"), "_fault": missing}).drop("amount")


# %% [markdown]
# Try it on rows, before anything is stored. This starts Spark and stops it.

# %%
tried = run_processor(in_cents, ORDERS, "id BIGINT, amount DOUBLE")
print("rows:", tried.rows)
print("faults:", {number: fault.reason for number, fault in tried.faults.items()})

# %% [markdown]
# The same settings as in a file, with the pipeline built in code. `load` tells everything that is wrong, and where.

# %%
settings = holdfast.load(
    {
        "source_coordination": {"store": {"sqlite": {"path": FOLDER / "leases.db"}}},
        "pipelines": {
            "orders": holdfast.Pipeline(
                source={
                    "objects": {
                        "folder": FOLDER / "orders",
                        "codec": "jsonl",
                        "schema": "id BIGINT, amount DOUBLE",
                        "scan": "once",
                    }
                },
                processors=[in_cents],
                sinks=[{"files": {"root": FOLDER / "out"}}],
            )
        },
    }
)

# %% [markdown]
# Run a node in this process, until the folder has been read. Other nodes could share the work, through the same store.

# %%
summary = holdfast.run(settings)
print("summary:", summary)
assert summary.complete

# %%
table = pq.read_table([str(path) for path in sorted((FOLDER / "out").glob("**/[!_]*.parquet"))])
print("written:", table.select(["id", "cents"]).to_pylist())
