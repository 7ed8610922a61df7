"""The benches run, and what they compare is what they say; nothing here is about speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.__main__ import BENCHES
from bench.inference import learned, linear_layers, plain_module
from bench.nets import MLP, NETS
from bench.released import MaskedLayer, through_masks, with_masks_of, zero_used
from bench.rivals import Effort, Rounds, take_turns
from torch import nn

from forgetfree.masks import kept_count
from forgetfree.sparse import SparseLinear

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _without_data(monkeypatch, tmp_path):
    monkeypatch.setenv("FORGETFREE_DATA", str(tmp_path))


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_the_smallest_configuration_of_a_bench_runs_and_says_its_circumstances(name):
    for table in BENCHES[name](Effort(rounds=1, quick=True)):
        assert table.rows
        assert all(row.keys() == table.rows[0].keys() for row in table.rows)
        assert "time" in table.note
        assert torch.__version__ in table.note


def test_the_command_line_writes_the_rows_as_json(tmp_path):
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench", "select", "--quick", "--json", str(file)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert max(map(len, shown.splitlines())) <= 100
    (table,) = json.loads(file.read_text())["select"]
    assert table["rows"][0]["scores"] == 78_400


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_a_network_has_the_published_number_of_masked_weights_and_takes_its_inputs(net):
    module = net.build()
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    assert sum(layer.weight.numel() for layer in layers) == net.masked_weights
    assert all(layer.bias is None for layer in layers)
    assert module(net.samples(2)[0]).dim() == 2


def test_the_released_way_keeps_the_published_number_of_weights_and_moves_no_used_one():
    torch.manual_seed(0)
    net = through_masks(MLP.build(), capacity=0.1)
    inputs, _ = MLP.samples(4)
    net(inputs).sum().backward()
    layers = {name: part for name, part in net.named_modules() if isinstance(part, MaskedLayer)}
    assert len(layers) == 2
    for layer in layers.values():
        assert int(layer.mask.sum()) == kept_count(layer.weight.numel(), 0.1)
        assert torch.equal(layer.weight.grad != 0, (layer.weight.grad != 0) & (layer.mask == 1))
        assert (layer.scores.grad[layer.mask == 0] != 0).any()
    zero_used(net, with_masks_of(net, {}))
    assert all((layer.weight.grad == 0).all() for layer in layers.values())


def test_the_plain_module_answers_as_the_ticket_does():
    learner = learned(MLP)
    inputs, _ = MLP.samples(5)
    assert torch.equal(plain_module(learner, MLP, "task 1")(inputs), learner.predict(inputs, task="task 1"))


def test_a_compressed_layer_computes_the_same_and_a_dense_one_stays():
    for density, kind in ((0.05, SparseLinear), (0.3, nn.Linear)):
        dense, compressed = linear_layers(2500, 1500, density)
        assert type(compressed) is kind
        inputs = torch.randn(4, 2500)
        torch.testing.assert_close(compressed(inputs), dense(inputs), atol=1e-4, rtol=1e-4)


def test_rivals_take_turns_and_a_ratio_is_the_median_over_rounds():
    order = []
    rounds = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, Effort(rounds=3))
    assert len(rounds) == 3
    assert {"a", "b"} == set(order)
    assert Rounds({"a": [2.0, 9.0, 4.0], "b": [1.0, 3.0, 1.0]}).ratio("a", to="b") == 3.0


@pytest.mark.parametrize("method", ["softnet", "f2m"])
def test_updates_measures_every_way_to_train_sessions(method, monkeypatch):
    from bench import updates

    shown = []
    monkeypatch.setattr(updates, "EXPERIMENT", "fscil/digits")
    monkeypatch.setattr(updates, "WAYS", 1)
    monkeypatch.setattr(updates.Table, "show", lambda table, _: shown.append(table))
    monkeypatch.setattr(sys, "argv", ["updates", "--method", method, "--epochs", "4"])
    updates.main()
    found = {row.pop("sessions"): row for row in shown[0].rows}
    assert list(found) == [change.words for change in updates.changes(method)]
    assert all(0 <= float(cell) <= 100 for row in found.values() for cell in row.values())
    assert any(row != found["nothing trained"] for row in found.values())
