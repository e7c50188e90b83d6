"""The console script: what it prints, what it refuses, what it leaves unloaded."""

import json
import socket
import subprocess
import sys
import types

import pytest

from search_r1 import doctor
from search_r1.cli import main
from search_r1.record import write_forest
from search_r1.testing import forest


def test_credit_prints_advantages_in_the_shape_of_the_rewards(capsys):
    assert main(["credit", "[[1,0.2,0.2],[0.2,0.2,0.2]]"]) == 0
    advantages = json.loads(capsys.readouterr().out)
    assert advantages[0] == pytest.approx([3.1959, -0.9856, -0.9856], abs=1e-4)
    assert advantages[1] == pytest.approx([-0.4082] * 3, abs=1e-4)


def test_credit_takes_an_estimator_and_passes_failed_leaves_through(capsys):
    assert main(["credit", "--estimator", "intra", "[[1, 1, null], [], [null]]"]) == 0
    assert json.loads(capsys.readouterr().out) == [[0.0, 0.0, None], [], [None]]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ("[[1,", "not JSON"),
        ("{}", "expected a list of trees"),
        ("[1, 0]", "got the tree 1"),
        ('[["1"]]', "got the reward '1'"),
        ("[[true]]", "got the reward True"),
        ("[[[1]]]", "got the reward [1]"),
        ("[[Infinity]]", "got the reward inf"),
        ("[[NaN]]", "got the reward nan"),
    ],
)
def test_credit_refuses_anything_but_rewards_in_one_line(capsys, rewards, message):
    assert main(["credit", rewards]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


def test_an_unknown_estimator_is_a_mistake_of_the_user(capsys):
    assert main(["credit", "--estimator", "gae", "[[1]]"]) == 2
    assert "known: tree" in capsys.readouterr().err


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "forests.jsonl"
    for step, uid in enumerate(("a", "b", "a")):
        write_forest(path, forest(rewards=[[1, 0]], uid=uid), step=step)
    return str(path)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["step 0"]),
        (["--index", "1"], ["step 1"]),
        (["--index", "-1"], ["step 2"]),
        (["--uid", "a"], ["step 0", "step 2"]),
    ],
)
def test_view_draws_the_chosen_forests(capsys, recording, options, shown):
    assert main(["view", recording, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("step")] == shown
    assert sum("capital of Norway?" in line for line in lines) == len(shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--index", "3"], "holds 3 forests"), (["--uid", "zz"], "no forest with the uid 'zz'")],
)
def test_view_names_a_forest_that_is_not_there(capsys, recording, options, message):
    assert main(["view", recording, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_file_is_one_line_and_exit_code_two(capsys, tmp_path):
    for command in (["view", "none.jsonl"], ["plot", "none.jsonl", "--out", "x.png"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "none.jsonl" in error and error.count("\n") == 1


def test_plot_writes_a_png(tmp_path):
    metrics, out = tmp_path / "m.jsonl", tmp_path / "c.png"
    metrics.write_text('{"step": 1, "reward": 0.5}\n')
    assert main(["plot", str(metrics), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch, recording):
    def broken(*args, **kwargs):
        raise KeyError("bug")

    monkeypatch.setattr("search_r1.view.terminal.draw", broken)
    with pytest.raises(KeyError):
        main(["view", recording])


def fake_module(monkeypatch, name, **functions):
    module = types.ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("command", ["index", "serve"])
def test_index_and_serve_are_parsed_and_run_by_the_server_package(monkeypatch, command):
    seen = []

    def add_parser(commands):
        commands.add_parser(command).add_argument("--corpus_path")

    def run(args):
        seen.append(args.corpus_path)
        return 3

    functions = {f"add_{command}_parser": add_parser, f"run_{command}": run}
    fake_module(monkeypatch, "retrieval_server.cli", **functions)
    assert main([command, "--corpus_path", "c.jsonl"]) == 3
    assert seen == ["c.jsonl"]


def test_train_passes_its_overrides_on_untouched(monkeypatch):
    seen = []
    fake_module(monkeypatch, "verl_tree_grpo.main", main=seen.append)
    assert main(["train", "--config-name", "x", "tree.M=4", "--help"]) == 0
    assert seen == [["--config-name", "x", "tree.M=4", "--help"]]


def test_a_value_error_out_of_a_training_run_keeps_its_traceback(monkeypatch):
    def diverge(overrides):
        raise ValueError("deep inside")

    fake_module(monkeypatch, "verl_tree_grpo.main", main=diverge)
    with pytest.raises(ValueError, match="deep inside"):
        main(["train"])


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["serve", "--port", "1"], "retrieval_server.cli", "serve"),
        (["index"], "retrieval_server.cli", "serve"),
        (["train"], "verl_tree_grpo.main", "gpu"),
        (["plot", "m.jsonl", "--out", "x"], "search_r1.view.plots", "plots"),
        (["data", "build", "geohop", "out"], "search_r1.data.geohop", "data"),
    ],
)
def test_a_missing_dependency_names_the_extra_to_install(
    monkeypatch, capsys, command, module, extra
):
    def missing(name):
        assert name == module
        raise ModuleNotFoundError("No module named 'sparkles'", name="sparkles.core")

    monkeypatch.setattr("search_r1.cli.importlib.import_module", missing)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "'sparkles'" in error and f"tree-grpo[{extra}]" in error


def test_a_missing_module_of_our_own_is_a_fault_not_a_missing_extra(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'search_r1.typo'", name="search_r1.typo")

    monkeypatch.setattr("search_r1.cli.importlib.import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="typo"):
        main(["serve"])


def test_data_build_passes_only_what_was_given_and_prints_what_was_written(monkeypatch, capsys):
    seen = []

    def build(*args, **kwargs):
        seen.append((args, kwargs))
        return {"passages": 9}

    fake_module(monkeypatch, "search_r1.data.geohop", build=build)
    assert main(["data", "build", "geohop", "out", "--num-cities", "50", "--seed", "7"]) == 0
    assert seen == [(("out",), {"num_cities": 50, "seed": 7})]
    assert json.loads(capsys.readouterr().out) == {"passages": 9}


HEAVY = ("numpy", "rich", "matplotlib", "torch", "verl", "ray", "vllm", "faiss", "fastapi")


def test_help_is_fast_because_it_loads_nothing_heavy():
    code = (
        "import sys\nfrom search_r1.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *text, loaded = out.stdout.splitlines()
    assert loaded == "[]"
    for command in ("train", "index", "serve", "data", "credit", "view", "plot", "doctor"):
        assert any(line.split()[:1] == [command] for line in text), command


# --- doctor ---------------------------------------------------------------------------------------


def test_doctor_prints_one_line_a_check_and_fails_only_on_a_hard_check(monkeypatch, capsys):
    fine, missing = doctor.Check(True, "fine"), doctor.Check(None, "extra missing")
    monkeypatch.setattr(doctor, "examine", lambda url: iter([fine, missing]))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "ok   fine\n--   extra missing\n"
    monkeypatch.setattr(doctor, "examine", lambda url: iter([doctor.Check(False, "bad"), fine]))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "FAIL bad\nok   fine\n"


def test_doctor_reports_python_verl_and_every_optional_module():
    texts = [check.text for check in doctor.examine()]
    assert texts[0].startswith("python 3.")
    assert texts[1].startswith("verl ")
    assert len(texts) == 3 + len(doctor.OPTIONAL)


def test_upstream_verl_is_a_package_with_a_file():
    verl = pytest.importorskip("verl", reason="upstream verl is not installed")
    assert verl.__file__ is not None
    assert doctor.check_verl().ok


def test_doctor_fails_where_verl_is_only_a_folder_of_ours(monkeypatch):
    namespace = types.SimpleNamespace(origin=None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: namespace)
    check = doctor.check_verl()
    assert check.ok is False and "namespace package" in check.text
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert doctor.check_verl().ok is None


def test_doctor_tells_a_listening_port_from_a_closed_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert doctor.check_reachable(f"http://127.0.0.1:{port}").ok
    assert doctor.check_reachable(f"127.0.0.1:{port}").ok is False
    with pytest.raises(ValueError, match="HOST:PORT"):
        doctor.check_reachable("")
