"""Each bad input ends in one message that says what, got, expected and what to do."""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from search_r1.protocols import RetrieverError
from verl_tree_grpo import main as entry
from verl_tree_grpo.check_data import (
    are_here,
    check_data_files,
    check_prompt_lengths,
    check_rows,
    check_steps,
)
from verl_tree_grpo.check_model import PLAIN_TEXT, check_context, check_model, check_tokenizer
from verl_tree_grpo.checks import (
    LOADING_S,
    check_batches,
    check_devices,
    check_groups,
    check_names,
    check_retriever,
    inspect,
)
from verl_tree_grpo.main import main
from verl_tree_grpo.recipe import compose, derive


@functools.lru_cache(maxsize=1)
def base() -> DictConfig:
    """The CPU recipe of the demo model, composed once."""
    return compose(["machine=cpu", "model=geohop_tiny"])


def with_values(**values: Any) -> DictConfig:
    """The CPU recipe, not derived, with ``a__b=value`` set at ``a.b``."""
    config = base().copy()
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


def derived(**values: Any) -> DictConfig:
    """The same with its derived values."""
    return derive(with_values(**values))


def model(folder: Path, *, positions: int = 4096, template: bool = True) -> str:
    """A model directory that holds everything but a usable model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    (folder / "model.safetensors").write_bytes(b"")
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": "{{ messages }}"} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def row(question: str = "who", golds: list[str] | None = None, prompt: str = "who?") -> dict:
    """One row of the parquet schema."""
    return {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {
            "style": "rule",
            "ground_truth": {"target": ["x"] if golds is None else golds},
        },
        "extra_info": {"question": question},
    }


def parquet(path: Path, rows: list[dict]) -> str:
    """Write rows; the path as text."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def data(path: Path, rows: list[dict]) -> dict[str, str]:
    """Settings that read ``rows`` for training and validation."""
    file = parquet(path / "rows.parquet", rows)
    return {"data__train_files": file, "data__val_files": file}


def only(messages: Any) -> str:
    """The single message of a check."""
    (message,) = list(messages)
    return message


@pytest.fixture
def retriever(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for the retrieval client whose probe fails while ``down`` is set."""
    client = types.ModuleType("search_r1.retrieval")
    client.down = ""

    client.waits = []

    def probe(url: str, timeout_s: float, *, loading_s: float) -> None:
        client.waits.append(loading_s)
        if client.down:
            raise RetrieverError(client.down)

    client.probe = probe
    monkeypatch.setitem(sys.modules, "search_r1.retrieval", client)
    return client


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("algorithm__adv_estimator", "gae", ("'gae'", "tree, inter, intra, grpo")),
        ("tree__expansion", "randm", ("did you mean random?",)),
        ("tree__reward", "F1", ("'F1'", "em, f1")),
        ("tree__validation_reward", "em_onli", ("did you mean em_only?",)),
        ("trainer__v1__trainer_mode", "sync", ("'sync'", "expected 'tree'")),
    ],
)
def test_an_unknown_name_lists_the_known_ones(key: str, value: str, words: tuple[str, ...]) -> None:
    message = only(check_names(with_values(**{key: value})))
    assert all(word in message for word in words)


def test_a_prompt_with_one_leaf_cannot_be_compared() -> None:
    config = derived(tree__M=1, tree__N=0)
    assert "1 leaf" in only(check_groups(config))


def test_the_intra_tree_term_alone_needs_two_leaves_a_tree() -> None:
    config = derived(tree__K=1, algorithm__adv_estimator="intra")
    assert "at least 2 leaves a tree" in only(check_groups(config))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data__train_batch_size": 12}, ("12 prompts", "multiple of", "= 8 prompts")),
        ({"trainer__n_gpus_per_node": 5}, ("48 rows", "5 data-parallel ranks")),
        ({"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 7}, ("is 7", "48 rows")),
    ],
)
def test_batches_that_do_not_divide_are_refused(
    values: dict[str, int], words: tuple[str, ...]
) -> None:
    message = only(check_batches(derived(**values)))
    assert all(word in message for word in words)


def test_devices_must_divide_into_engines() -> None:
    config = derived(actor_rollout_ref__rollout__tensor_model_parallel_size=2)
    assert "tensor_model_parallel_size is 2" in only(check_devices(config))


def test_several_nodes_cannot_ask_a_retriever_on_the_loopback_address() -> None:
    message = only(check_devices(derived(trainer__nnodes=2)))
    assert "http://127.0.0.1:8000" in message and "RETRIEVER_URL" in message


def test_a_missing_model_directory_is_named(tmp_path: Path) -> None:
    config = derived(actor_rollout_ref__model__path=str(tmp_path / "gone"))
    assert f"{tmp_path / 'gone'}, but there is no such directory" in only(check_model(config))


def test_a_model_directory_without_weights_is_incomplete(tmp_path: Path) -> None:
    path = model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    config = derived(actor_rollout_ref__model__path=path)
    assert "has no weights" in only(check_model(config))


def test_a_hub_id_needs_the_cache_or_a_network(tmp_path: Path) -> None:
    values = {"actor_rollout_ref__model__path": "no-such-owner/no-such-model"}
    assert "HF_HUB_OFFLINE is set" in only(check_model(derived(**values)))
    online = derived(**values)
    online.ray_kwargs.ray_init.runtime_env.env_vars.HF_HUB_OFFLINE = "0"
    assert list(check_model(online)) == []


def test_a_response_that_exceeds_the_context_is_refused(tmp_path: Path) -> None:
    config = derived(actor_rollout_ref__model__path=model(tmp_path / "model", positions=512))
    message = only(check_context(config))
    assert "544 tokens" in message and "max_position_embeddings = 512" in message
    fits = derived(actor_rollout_ref__model__path=model(tmp_path / "other", positions=544))
    assert list(check_context(fits)) == []


def test_a_tokenizer_without_chat_template_needs_an_explicit_one(tmp_path: Path) -> None:
    path = model(tmp_path / "model", template=False)
    message = only(check_tokenizer(derived(actor_rollout_ref__model__path=path)))
    assert "no chat template" in message and PLAIN_TEXT in message
    plain = derived(
        actor_rollout_ref__model__path=path, actor_rollout_ref__model__custom_chat_template="x"
    )
    assert list(check_tokenizer(plain)) == []


def test_a_broken_or_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = model(tmp_path / "model")
    config = derived(actor_rollout_ref__model__path=path)
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    assert "does not load" in only(check_tokenizer(config))
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer files" in only(check_tokenizer(config))


def test_missing_data_files_are_both_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.parquet")
    config = derived(data__train_files=gone, data__val_files=[gone])
    keys = [message.split()[0] for message in check_data_files(config)]
    assert keys == ["data.train_files", "data.val_files"]
    assert not are_here(config)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(question=""), "an empty extra_info.question in row 1 (1 of 3 rows"),
        (row(prompt="  "), "an empty prompt in row 1 (1 of 3 rows"),
        (row(golds=[]), "no gold answer in row 1 (1 of 3 rows"),
        (row(golds=["", " "]), "no gold answer in row 1"),
    ],
)
def test_a_row_without_text_is_named_by_its_number(tmp_path: Path, bad: dict, words: str) -> None:
    messages = list(check_rows(derived(**data(tmp_path, [row(), bad, row()]))))
    assert len(messages) == 1 and words in messages[0]


def test_good_rows_pass_in_every_shape_the_worker_accepts(tmp_path: Path) -> None:
    assert list(check_rows(derived(**data(tmp_path, [row(), row(golds=["a", ""])])))) == []
    flat = row() | {"reward_model": {"ground_truth": "x"}, "question": "who"}
    flat |= {"prompt": "who?"}
    assert list(check_rows(derived(**data(tmp_path, [flat])))) == []


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path, column: str) -> None:
    rows = [{key: value for key, value in row().items() if key != column}]
    message = only(check_rows(derived(**data(tmp_path, rows))))
    assert f"has no column {column}; got " in message


def test_a_file_that_is_not_parquet_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    file.write_text("id,question\n")
    messages = list(check_rows(derived(data__train_files=str(file), data__val_files=str(file))))
    assert len(messages) == 2 and "is not a parquet file" in messages[0]


def test_a_prompt_longer_than_its_limit_is_named_by_its_row(tmp_path: Path) -> None:
    values = data(tmp_path, [row(), row(prompt="word " * 300)])
    values["actor_rollout_ref__model__path"] = model(tmp_path / "model")
    message = only(check_prompt_lengths(derived(**values)))
    assert "row 1 has 300 tokens" in message and "data.max_prompt_length = 64" in message


def test_fewer_rows_than_a_batch_would_train_nothing(tmp_path: Path) -> None:
    message = only(check_steps(derived(**data(tmp_path, [row()] * 7))))
    assert "7 rows" in message and "train_batch_size = 8" in message


def test_fewer_epochs_than_the_steps_need_are_refused(tmp_path: Path) -> None:
    values = data(tmp_path, [row()] * 8) | {"trainer__total_epochs": 1}
    message = only(check_steps(derived(**values)))
    assert "1 steps an epoch" in message and "trainer.total_training_steps = 2" in message


def test_a_silent_retriever_is_named_with_the_command_that_starts_one(
    retriever: types.ModuleType,
) -> None:
    retriever.down = "connection refused"
    message = only(check_retriever(derived(tree__retriever_url="http://127.0.0.1:8123")))
    assert "connection refused" in message
    assert "PORT=8123 bash scripts/launch_retriever.sh" in message


def test_all_failures_come_together_with_exit_code_2_and_nothing_starts(
    retriever: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    retriever.down = "connection refused"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry, "apply_environment", lambda config: pytest.fail("it started"))
    monkeypatch.delenv("DRY_RUN", raising=False)
    arguments = ["machine=cpu", "model=geohop_tiny", "tree.K=9", "tree.reward=emm"]
    assert main([*arguments, "actor_rollout_ref.model.path=./gone"]) == 2
    said = capsys.readouterr().err
    for word in ("names:", "tree.K is 9", "model:", "data files:", "retriever:"):
        assert word in said
    assert list(tmp_path.iterdir()) == []
    assert retriever.waits == [0.0]


def test_a_dry_run_warns_about_what_is_absent_and_fails_on_what_is_wrong(
    retriever: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    retriever.down = "connection refused"
    arguments = ["--dry-run", "machine=cpu", "model=geohop_tiny", "data.train_files=gone"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "warning: connection refused" in shown and "warning: data.train_files" in shown
    assert main([*arguments, "tree.K=4"]) == 2
    assert "FAILED: tree.K is 4" in capsys.readouterr().out


def test_checks_of_absent_files_are_reported_as_not_run(
    retriever: types.ModuleType, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    values = {"data__train_files": gone, "data__val_files": gone}
    _, findings = inspect(with_values(**values, actor_rollout_ref__model__path=gone), dry_run=True)
    not_run = {finding.check for finding in findings if not finding.ran}
    assert not_run == {
        "context length", "tokenizer", "prompt lengths", "data rows", "number of steps"
    }  # fmt: skip


def test_a_run_whose_files_and_server_are_there_passes_every_check(
    retriever: types.ModuleType, tmp_path: Path
) -> None:
    values: dict[str, Any] = data(tmp_path, [row()] * 16)
    values["actor_rollout_ref__model__path"] = model(tmp_path / "model")
    _, findings = inspect(with_values(**values))
    assert retriever.waits == [LOADING_S]
    assert [(f.check, f.messages) for f in findings if f.messages or not f.ran] == []
