"""The tables of what there is: held to what they name, open to plug-ins, and clear about what is wrong with one."""

import inspect
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import forgetfree as ff
from forgetfree import methods, registry
from forgetfree.lab import experiment
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.methods import METHODS
from forgetfree.registry import Entry, MethodEntry, Table, backbone_builder, load_plugin

ORDER = (
    "wsn finetune single_task multitask ewc hat gpm packnet supsup piggyback "
    "bayes_means softnet hardnet ncm joint crt icarl rebalance fsll f2m warp s3c"
)  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_what_the_table_says_of_a_method_is_what_its_class_says(name):
    entry, made = METHODS.entry(name), METHODS[name]
    assert inspect.isclass(made)
    assert entry.place == f"{made.__module__}:{made.__qualname__}"
    assert entry.title == inspect.getdoc(made).partition("\n")[0]
    assert (entry.scenario, entry.forget_free) == (made.scenario, made.forget_free)
    if entry.capacity:
        assert "capacity" in inspect.signature(made).parameters
    assert entry.label
    assert METHODS.name_of(made) == name


def test_the_order_of_methods_is_that_of_before():
    assert list(METHODS) == ORDER.split()


def test_no_two_methods_look_alike_and_every_colour_can_be_read_on_white():
    looks = [(entry.colour, entry.marker) for entry in METHODS.entries.values()]
    assert len(set(looks)) == len(looks)
    for scenario in ("til", "fscil"):
        colours = [entry.colour for entry in METHODS.entries.values() if entry.scenario == scenario]
        assert len(set(colours)) == len(colours)
    for colour, _ in looks:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        assert 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05) >= 4.5, colour


OF_FUNCTIONS = {"benchmarks": BENCHMARKS, "backbones": BACKBONES}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in OF_FUNCTIONS.items() for name in table])
def test_what_a_table_says_of_a_function_is_the_first_of_its_docstring_or_of_its_file(kind, name):
    table = OF_FUNCTIONS[kind]
    made, title = table[name], table.entry(name).title
    assert table.entry(name).place == f"{made.__module__}:{made.__name__}"
    texts = (made.__doc__, sys.modules[made.__module__].__doc__)
    assert any(" ".join((text or "").split()).startswith(title) for text in texts)


def test_tables_of_names_import_no_torch():
    code = (
        "import sys, forgetfree.methods as m, forgetfree.lab.benchmarks, forgetfree.lab.backbones, forgetfree\n"
        "assert m.METHODS.entry('wsn').label == 'WSN' and 'ewc' in forgetfree.METHODS and len(dir(forgetfree)) > 30\n"
        "from forgetfree.lab.experiment import catalog\n"
        "assert len(catalog()) >= 14\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "from forgetfree.methods import WSN\n"
        "from forgetfree import WSN as again\n"
        "assert 'torch' in sys.modules and WSN is again is m.METHODS['wsn']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_can_be_imported_and_others_cannot():
    for module in (ff, methods, experiment):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name) is not None for name in module.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            module.nothing  # noqa: B018
    assert ff.tickets is sys.modules["forgetfree.tickets"]


def offer(monkeypatch, **groups):
    """Installed packages that offer these entry points: kind="module:NAME", or several."""

    def entry_points(*, group):
        values = groups.get(group.rpartition(".")[2], ())
        return [EntryPoint(f"point{n}", value, group) for n, value in enumerate(values)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported while the test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


ENTRY = "from forgetfree.registry import Entry, MethodEntry\n"


def table(**entries):
    return Table("benchmarks", {"ours": Entry("forgetfree.lab.benchmarks.digits:digits_split", "Ours."), **entries})


def test_an_installed_package_adds_to_a_table(module, monkeypatch):
    module("brought", f"{ENTRY}TABLE = {{'theirs': Entry('brought:make', 'Theirs.')}}\ndef make(): return 7\n")
    offer(monkeypatch, benchmarks=["brought:TABLE"])
    found = table()
    assert list(found) == ["ours", "theirs"]
    assert (found["theirs"](), found.entry("theirs").source) == (7, "brought:TABLE")
    assert found.plugin_of("theirs") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise OSError('no licence')", r"'point0' \(broken:TABLE\).*OSError: no licence"),
        ("TABLE = 3", r"benchmarks that are no table.*registry\.Entry is wanted; got int"),
        ("TABLE = {'a': print}", r"no table.*builtin_function_or_method"),
        (
            f"{ENTRY}TABLE = {{'ours': Entry('broken:x', '')}}",
            r"two packages bring benchmark 'ours': forgetfree and bro",
        ),
        ("other = 1", r"'point0'.*AttributeError"),
    ],
)
def test_a_broken_package_is_named_with_what_it_said_and_is_in_nobodys_way(module, monkeypatch, text, said):
    module("broken", text)
    offer(monkeypatch, benchmarks=["broken:TABLE"])
    found = table()
    with pytest.raises(ff.PluginError, match=said):
        list(found)
    assert found["ours"].__name__ == "digits_split"
    assert found.entry("ours").title == "Ours."


def test_two_packages_that_bring_one_name_are_both_named(module, monkeypatch):
    for name in ("one", "two"):
        module(name, f"{ENTRY}TABLE = {{'same': Entry('{name}:x', '')}}\nx = 1\n")
    offer(monkeypatch, benchmarks=["one:TABLE", "two:TABLE"])
    with pytest.raises(ff.PluginError, match=r"two packages bring benchmark 'same': one:TABLE and two:TABLE"):
        list(table())


def test_what_cannot_be_imported_is_said_when_it_is_asked_for(monkeypatch):
    offer(monkeypatch)
    found = table(gone=Entry("forgetfree.nowhere:make", "Gone."))
    assert "gone" in found
    with pytest.raises(ff.PluginError, match=r"benchmark 'gone' of forgetfree cannot be imported from forgetfree\.now"):
        found["gone"]


def test_a_plug_in_is_loaded_by_its_name_once_or_twice(module, monkeypatch):
    offer(monkeypatch)
    module("mine", f"{ENTRY}BENCHMARKS = {{'mine': Entry('mine:make', 'Mine.')}}\ndef make(): return 1\n")
    found = table()
    for _ in range(2):
        load_plugin("mine", {"benchmarks": found})
    assert (list(found), found["mine"](), found.plugin_of("mine")) == (["ours", "mine"], 1, "mine")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "unknown_one",
            None,
            r"--plugin unknown_one: it cannot be imported.*Is it installed, or in the current folder",
        ),
        ("not a name", None, r"--plugin not a name: it cannot be imported"),
        ("bad", "import nothing_like_this", r"--plugin bad.*No module named 'nothing_like_this'"),
        ("bad", "1 / 0", r"--plugin bad.*ZeroDivisionError: division by zero"),
        ("bad", "def", r"--plugin bad.*SyntaxError"),
        ("bad", "x = 1", r"--plugin bad: it has none of BENCHMARKS"),
        ("bad", "BENCHMARKS = {'a': 1}", r"bad offers benchmarks that are no table.*got values of type int"),
        (
            "bad",
            f"{ENTRY}BENCHMARKS = {{'ours': Entry('bad:x', '')}}",
            r"bad brings benchmark 'ours', which forgetfree",
        ),
    ],
)
def test_a_plug_in_that_is_unknown_or_broken_is_named_with_what_it_said(module, monkeypatch, name, text, said):
    offer(monkeypatch)
    if text is not None:
        module(name, text)
    found = table()
    with pytest.raises(ff.PluginError, match=said):
        load_plugin(name, {"benchmarks": found})
    assert list(found) == ["ours"]


def test_two_plug_ins_of_one_name_are_refused_and_the_first_stays(module, monkeypatch):
    offer(monkeypatch)
    found = table()
    for name in ("first", "second"):
        module(name, f"{ENTRY}BENCHMARKS = {{'same': Entry('{name}:x', '{name}')}}\nx = 1\n")
    load_plugin("first", {"benchmarks": found})
    with pytest.raises(ff.PluginError, match=r"second brings benchmark 'same', which first has already"):
        load_plugin("second", {"benchmarks": found})
    assert found.entry("same").title == "first"


def test_methods_need_an_entry_that_says_their_scenario(monkeypatch):
    offer(monkeypatch)
    empty = Table("methods", {}, entry_type=MethodEntry)
    with pytest.raises(ff.PluginError, match=r"registry\.MethodEntry is wanted; got values of type Entry"):
        empty.plug({"mine": Entry("mine:Mine", "")}, "mine")


def test_what_is_required_and_not_there_is_named_with_how_to_get_it(monkeypatch):
    offer(monkeypatch)
    with pytest.raises(ff.PluginError, match=r"no benchmark 'theirs' here. There are: ours\. Install.*--plugin"):
        table().required("theirs")
    assert table().required("ours").__name__ == "digits_split"


def test_a_backbone_is_built_by_the_name_that_a_package_offers(module, monkeypatch):
    assert backbone_builder("mlp") is BACKBONES["mlp"]
    with pytest.raises(ff.PluginError, match=r"no backbone is called 'mpl'; installed are alexnet, conv4, .*mlp"):
        backbone_builder("mpl")
    module("nets", f"{ENTRY}NEW = {{'new': Entry('nets:net', '')}}\ndef net(): return 1\nOLD = {{'old': net}}\n")
    offer(monkeypatch, backbones=["nets:NEW", "nets:OLD", "missing:TABLE"])
    assert backbone_builder("new") is backbone_builder("old") is sys.modules["nets"].net
    with pytest.raises(ff.PluginError, match=r"installed are new, old\. the plug-in 'point2' \(missing:TABLE\)"):
        backbone_builder("mlp")


def test_two_packages_with_a_backbone_of_one_name_are_both_named(module, monkeypatch):
    for name in ("one", "two"):
        module(name, "def net(): return 1\nTABLE = {'net': net}\n")
    offer(monkeypatch, backbones=["one:TABLE", "two:TABLE"])
    with pytest.raises(ff.PluginError, match=r"one:TABLE and two:TABLE both bring a backbone 'net'"):
        backbone_builder("net")


def test_backbones_may_be_offered_as_functions(module, monkeypatch):
    module("nets", "def net():\n    'A net.'\n    return 1\nTABLE = {'net': net, 'other': lambda: 2}\n")
    offer(monkeypatch, backbones=["nets:TABLE"])
    found = Table("backbones", {})
    assert (found["net"](), found.entry("net").title, found["other"]()) == (1, "A net.", 2)


def test_our_own_things_are_named_although_a_package_is_broken(monkeypatch):
    table = Table("methods", {"ours": MethodEntry("forgetfree.methods.wsn:WSN", "")}, entry_type=MethodEntry)
    monkeypatch.setattr(table, "_of_packages", lambda: pytest.fail("a package was asked"))
    assert table.name_of(ff.WSN) == "ours"


def test_a_backbone_that_is_refused_replaces_nothing():

    ours = BACKBONES["mlp"]

    def mlp():
        """Another one."""

    with pytest.raises(ff.PluginError, match="has already"):
        BACKBONES.plug({"mlp": mlp}, "elsewhere")
    assert BACKBONES["mlp"] is ours
