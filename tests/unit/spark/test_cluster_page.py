"""The page about clusters shows settings that load, and none that would be warned of."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config import load_text
from holdfast.registry import Registry
from holdfast.spark.session import _all_settings, is_unprotected

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-on-a-cluster.md"
ENVIRONMENT = {"SPARK_SECRET": "sesame", "POD_NAME": "holdfast-0", "POD_IP": "10.0.0.7"}


@pytest.mark.parametrize("master", ["spark://", "yarn", "k8s://"])
def test_the_settings_for_each_kind_of_cluster_load_and_protect_it(master: str) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if f"master: {master}" in block]
    spark = load_text(block, PAGE.name, Registry.installed(), ENVIRONMENT).spark
    conf = _all_settings("holdfast", spark.plain_conf(), str(spark.master))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    assert not is_unprotected(session)
