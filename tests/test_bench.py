"""The benches run, and what they compare is what they say; nothing here is about speed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench import page
from bench.__main__ import BENCHES
from bench.inference import learned, linear_layers, plain_module
from bench.nets import MLP, NETS
from bench.released import MaskedLayer, through_masks, with_masks_of, zero_used
from bench.rivals import Effort, Rounds, take_turns
from bench.tables import Table, store, stored
from torch import nn

from forgetfree import Task
from forgetfree.masks import kept_count
from forgetfree.methods import METHODS
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
    ((title, table),) = stored(file).items()
    assert title.startswith("select:")
    assert table.rows[0]["scores"] == 78_400


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
    monkeypatch.setattr(updates, "POOL", {})
    monkeypatch.setattr(updates, "MEASURED", ())
    monkeypatch.setattr(updates.Table, "show", lambda table, _: shown.append(table))
    monkeypatch.setattr(sys, "argv", ["updates", "--method", method, "--epochs", "4", "--seed", "1"])
    updates.main()
    found = {row.pop("sessions"): row for row in shown[0].rows}
    assert list(found) == [change.words for change in updates.changes(method)]
    assert all(0 <= float(cell) <= 100 for row in found.values() for cell in row.values())
    assert any(row != found["nothing trained"] for row in found.values())


def test_updates_tests_no_drawing_that_was_learned_or_chose_an_epoch_and_no_class_of_a_stored_run():
    from bench import updates

    classes, drawings = 8, 14
    images = torch.arange(classes * (drawings + 1)).float().view(classes, drawings + 1, 1)
    labels = torch.arange(classes).repeat_interleave(drawings)
    names = tuple(f"character {at}" for at in range(classes))
    base = Task("base", names, (images[:, :-1].reshape(-1, 1), labels), (images[:, -1], torch.arange(classes)))
    data = updates.stream(base, 1, without={"character 2"})
    seen = [value for task in data.tasks for part in (task.train, task.valid) if part for value in part[0].tolist()]
    tested = [value for inputs, _ in data.tests for value in inputs.tolist()]
    assert not any(value in seen for value in tested)
    assert len(tested) == len({*map(tuple, tested)})
    assert "character 2" not in [name for task in data.tasks for name in task.classes]


def test_a_document_shows_the_rows_that_a_bench_stored(tmp_path):
    store([Table("steps: a, b", [{"net": "MLP", "ms": 1234.5, "times": 7}], "1 thread")], tmp_path / "rows.json")
    marked = "before\n<!-- bench rows.json: steps: a, b -->\n"
    shown = f"{marked}\n**steps: a, b**\n\n| net | ms | times |\n| --- | --- | --- |\n| MLP | 1234 | 7 |\n\n1 thread\n"
    assert page.with_tables(f"{marked}\nafter\n", tmp_path) == f"{shown}\nafter\n"
    assert page.with_tables(f"{shown}\nafter\n", tmp_path) == f"{shown}\nafter\n"
    assert page.with_tables(f"{shown.replace('1234', '99')}\nafter\n", tmp_path) == f"{shown}\nafter\n"


@pytest.mark.parametrize("document", page.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_of_a_document_are_what_was_measured(document):
    text = document.read_text()
    assert page.MARKED.search(text), "no table with its rows was found"
    assert page.with_tables(text) == text, "run python -m bench.page"


def test_of_every_file_of_stored_rows_a_document_shows_some():
    text = "".join(document.read_text() for document in page.DOCUMENTS)
    assert {path.name for path in page.STORED.glob("*.json")} == {found[2] for found in page.MARKED.finditer(text)} - {
        None
    }


def test_the_search_for_rates_goes_on_where_it_stopped_and_takes_the_smallest_of_equals(monkeypatch, tmp_path):
    from bench import rates

    accuracies = {0.03: 0.5, 0.1: 0.895, 0.3: 0.9, 1.0: 0.2}
    asked = []

    def measured(search, value):
        asked.append((search.method, search.setting, value))
        accuracy = accuracies[value] if search.setting == "lr" else 0.9
        row = {"value": value, "accuracy": accuracy, "loss": 1.0, "images": 900, "seconds": 1.0}
        return {**{name: getattr(search, name) for name in search.__dataclass_fields__}, **row}

    monkeypatch.setattr(rates, "measure", measured)
    monkeypatch.setattr(
        sys, "argv", ["rates", "--json", str(tmp_path / "rows.json"), "--method", "hat", "--on", rates.PERCEPTRONS]
    )
    rates.main()
    rates.main()
    assert asked == [("hat", "lr", value) for value in rates.RATES["sgd"]] + [
        ("hat", "sparsity", value) for value in rates.PENALTIES["hat"][1]
    ]
    rows = rates.measured(tmp_path / "rows.json")
    search = rates.Search(rates.PERCEPTRONS, "hat", "sgd")
    assert rates.chosen(rows, search) == 0.1, "0.3 is better by less than the standard error of 0.01"
    assert rates.chosen(rows, rates.penalty_for(search, 0.1)) == 0.75
    assert rates.chosen(rows[:3], search) is None


def test_a_row_of_the_search_for_rates_asks_validation_data_and_a_rate_that_diverges_gets_nothing(monkeypatch):
    from bench import rates

    monkeypatch.setattr(rates, "TASKS", 1)
    search = rates.Search(rates.PERCEPTRONS, "finetune", "sgd")
    row, diverged = rates.measure(search, 0.1), rates.measure(search, 1e30)
    assert row["images"] == 269
    assert row["accuracy"] == row["task 1"] > 0.5
    assert (diverged["accuracy"], diverged["loss"]) == (0, "diverged")


def test_estimates_that_were_measured_are_near_the_truth():
    (table,) = stored(page.STORED / "estimates.json").values()
    assert {row["method"].split()[0] for row in table.rows} == set(METHODS)
    assert all(2 / 3 < row["ratio"] < 3 / 2 for row in table.rows)


def test_heads_are_chosen_on_hidden_classes_with_the_same_effort(monkeypatch, tmp_path):
    from bench import hidden
    from bench.tables import stored

    monkeypatch.setattr(hidden, "GRIDS", {"means": [{}], "bayes": hidden.grid(shrinkage=(0.2, 0.8))})
    words = f"hidden fscil/digits --seed 1 2 --set recipe.epochs=2 --json {tmp_path}/rows.json"
    monkeypatch.setattr(sys, "argv", words.split())
    hidden.main()
    shown, every = stored(tmp_path / "rows.json").values()
    assert len(every.rows) == 3 * len(hidden.OFFSETS) * 2
    best = hidden.chosen(every.rows)
    assert [row["head"] for row in shown.rows] == [best[head]["settings"] for head in ("means", "bayes")]
    for head, row in best.items():
        over = [each for each in hidden._over_seeds(every.rows) if each["head"] == head]
        assert row["overall"] == max(each["overall"] for each in over)
    assert all(0 < row["overall"] <= 100 for row in shown.rows)


def test_no_head_has_more_settings_than_another_may_have():
    from bench import hidden

    from forgetfree.heads import head_by_name

    assert max(map(len, hidden.GRIDS.values())) == 12
    assert all(head_by_name(hidden.written(head, given)) for head, given in hidden.settings())


def test_rates_of_sessions_are_searched_with_the_same_effort_and_the_search_goes_on(monkeypatch, tmp_path):
    from bench import sessions

    asked = []

    def measured(experiment, method, seed, overrides, share, bases):
        asked.append((method, seed, *overrides.items()))
        return {"overall": 1 - abs(overrides["session.lr"] - 0.1), "base": 0.5, "novel": 0.5}

    monkeypatch.setattr(sessions, "tried", measured)
    words = f"sessions fscil/digits --method fsll --method crt --seed 1 2 --json {tmp_path}/rows.json"
    monkeypatch.setattr(sys, "argv", words.split())
    sessions.main()
    count = len(asked)
    sessions.main()
    assert len(asked) == count == 2 * (5 + 5 + 5)
    rows = stored(tmp_path / "rows.json")[sessions.MEASURED].rows
    assert len({row["value"] for row in rows if row["method"] == "crt"}) == 5
    rate = sessions.chosen(rows, "fsll", "session.lr", 5)
    assert {row["rate"] for row in rows if row["setting"] == "reg_weight"} == {rate}


def test_a_row_of_the_search_for_sessions_is_learned_on_hidden_classes():
    from bench import sessions

    given = {"recipe.epochs": 1, "session.epochs": 1, "session.lr": 0.01}
    found = sessions.tried("fscil/digits", "softnet", 1, given, 0.6, None)
    assert 0 < found["overall"] == pytest.approx(0.6 * found["base"] + 0.4 * found["novel"])
