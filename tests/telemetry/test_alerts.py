"""The dashboard and the alerts of examples/grafana: they name what there is, and each one fires."""

import re

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pymongo.errors import DuplicateKeyError

from aioretry.telemetry.prometheus import PrometheusHook
from tests.lengths import FULL
from tests.telemetry import alerts

METRIC = re.compile(r"\b(aioretry_\w+)(?:\{(\w+)[!=]+\"(\w+)\"\})?")
GROUPING = re.compile(r"(?:by|ignoring) \(([\w, ]+)\)")
OF_PROMETHEUS = {"instance", "le"}  # labels that a scrape and a histogram add


def rules():
    """The rules, as they are in the file."""
    groups = yaml.safe_load((alerts.EXAMPLE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries():
    """Every query of the dashboard and of the rules."""
    shown = [target["expr"] for panel in alerts.panels() for target in panel["targets"]]
    return shown + [rule["expr"] for rule in rules()]


async def test_queries_name_what_there_is(replica_set, collection, client_class):
    """Metrics and labels are those of the hook."""
    registry = CollectorRegistry()
    hook = PrometheusHook(registry)
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        hook.observe(client)
        mine = client[collection.database.name][collection.name]
        with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
            await mine.insert_one({"_id": 1})
        with pytest.raises(DuplicateKeyError):
            await mine.insert_one({"_id": 1})
        text = generate_latest(registry).decode()
    labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    # Those of a failover have no samples before one.
    waits = {f"aioretry_server_wait_seconds_{part}": set() for part in ("sum", "count")}
    known = waits | labels
    for query in queries():
        found = METRIC.findall(query)
        assert found, query
        for name, label, _ in found:
            assert name in known, query
            assert not label or label in known[name], query
        every = OF_PROMETHEUS.union(*(known[name] for name, _, _ in found))
        for grouping in GROUPING.findall(query):
            assert set(grouping.split(", ")) <= every, query


def test_rules():
    """Each says what has happened, and what to do; each has a situation in which it is played."""
    assert alerts.names() == [rule["alert"] for rule in rules()] == [*alerts.Play.situations]
    for rule in rules():
        assert {"summary", "description"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"page", "ticket"}
    assert [] == re.findall(r"\d+m\b|> \d\d", alerts.rules())  # all times are short in the play


def test_panels():
    """Each has its own place and title, and asks the chosen Prometheus."""
    panels = alerts.panels()
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(panels) == len(places) == len({panel["title"] for panel in panels})
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in panels}


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(900)
@pytest.mark.skipif(alerts.PROMETHEUS is None, reason="there is no program `prometheus`")
@pytest.mark.skipif(not FULL, reason="takes three minutes: in full length only")
async def test_each_fires():
    """In a real Prometheus, in the situation that it is for; before that, none does."""
    run = await alerts.play(print)
    assert set(alerts.names()) == run.fired.keys()
    assert "<svg" in alerts.draw(run)
