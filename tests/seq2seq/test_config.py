"""Configs: what is read, and how mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from parsimax._runs.config_reader import all_keys
from parsimax.seq2seq import config as configs
from parsimax.seq2seq.config import Config, ConfigError, DataSettings
from parsimax.seq2seq.models import TransformerSettings

DATA = "data: {train: [a.tsv], validation: b.tsv}\n"


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return configs.load(path, overrides)


def test_defaults_and_nesting(tmp_path: Path) -> None:
    config = load(tmp_path, DATA + "optimizer: {lr: 1e-4, schedule: {kind: inverse_sqrt}}\nseed: 7")
    assert config.data == DataSettings(train=("a.tsv",), validation=("b.tsv",))
    assert config.optimizer.lr == 1e-4  # YAML 1.1 reads 1e-4 as text
    assert config.optimizer.schedule.kind == "inverse_sqrt"
    assert config.optimizer.betas == (0.9, 0.999)
    assert config.seed == 7


def test_the_kind_chooses_the_model(tmp_path: Path) -> None:
    config = load(tmp_path, DATA + "model: {kind: transformer, dim: 64, heads: 4}")
    assert config.model == TransformerSettings(dim=64, heads=4)
    assert load(tmp_path, DATA).model.kind == "rnn"


@pytest.mark.parametrize(
    "overrides",
    [
        ("--optimizer.lr", "0.5", "--data.train", "x", "y", "--data.skip_bad"),
        ("--optimizer.lr=0.5", "--data.train=[x, y]", "--data.skip_bad", "true"),
        ("--optimizer.lr", "5e-1", "--data.train", "[x, y]", "--data.skip_bad=yes"),
    ],
)
def test_overrides(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    config = load(tmp_path, DATA + "optimizer: {lr: 1, eps: 1e-6}", *overrides)
    assert config.optimizer.lr == 0.5
    assert config.optimizer.eps == 1e-6
    assert config.data.train == ("x", "y")
    assert config.data.skip_bad


def test_a_glob_may_begin_with_a_star(tmp_path: Path) -> None:
    config = load(tmp_path, DATA, "--data.train", "*-train.tsv", "x.tsv")
    assert config.data.train == ("*-train.tsv", "x.tsv")


def test_none_and_negative_values_can_be_given(tmp_path: Path) -> None:
    config = load(tmp_path, DATA, "--optimizer.clip", "null", "--training.max_steps", "1e3")
    assert config.optimizer.clip is None
    assert config.training.max_steps == 1000
    with pytest.raises(ConfigError, match=r"--optimizer\.lr: optimizer\.lr: .*more than 0, got -1"):
        load(tmp_path, DATA, "--optimizer.lr", "-1")


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_what_is_written_is_read_back(tmp_path: Path, kind: str) -> None:
    config = load(tmp_path, DATA, "--model.kind", kind, "--training.max_minutes", "2.5")
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert configs.load(tmp_path / "again.yaml") == config
    # the resolved file says everything there is
    written = set(all_keys_of(yaml.safe_load(config.to_yaml())))
    assert written == set(config.flat())


def all_keys_of(tree: dict[str, object], prefix: str = "") -> list[str]:
    keys = []
    for name, value in tree.items():
        keys += (
            all_keys_of(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
        )
    return keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optimizer:\n  lrr: 1",
            r"c\.yaml line 3: unknown option optimizer\.lrr; .*optimizer\.lr\?",
        ),
        ("optimiser: {lr: 1}", r"line 2: unknown option optimiser\.lr; .*optimizer\.lr\?"),
        ("batch_size: 3", r"unknown option batch_size; did you mean training\.batch\.size\?"),
        ("training: {learning_rate: 3}", r"training\.learning_rate; did you mean optimizer\.lr\?"),
        ("beam: 3", r"unknown option beam; did you mean search\.beam\?"),
        ("zzz: 3", r"unknown option zzz; there are data, model, optimizer, training, search, seed"),
        ("model: {heads: 4}", r"model\.heads is an option of another model\.kind"),
        ("model: {kind: rnnn}", r"model\.kind: expected one of rnn, transformer, .*mean rnn\?"),
        ("model: {output: sparsmax}", r"model\.output: unknown mapping 'sparsmax'.*'sparsemax'\?"),
        ("model: {output: entmax(alpha=0.5)}", r"model\.output: .*alpha"),
        (
            "model: {output: entmax(alpha=learned)}",
            r"model\.output: .*must have a fixed .*minimised over alpha only grows alpha; use e\.g",
        ),
        ("model: {output: entmax(alpha= learned)}", r"model\.output: .*only grows alpha"),
        ("model: {output: budget}", r"model\.output: .*'budget': its weights sum to k.*sparsemax"),
        ("model: {output: budget(k=3)}", r"model\.output: .*'budget\(k=3\)'"),
        ("model: {attention: budget}", r"model\.attention: .*'budget': its weights sum to k"),
        *(
            (
                f"model: {{kind: transformer, {name}_attention: budget(k=2)}}",
                rf"model\.{name}_attention: expected weights that sum to 1.*fewer than k symbols",
            )
            for name in ("encoder", "context", "decoder")
        ),
        ("model: {attention: entmx}", r"model\.attention: .*'entmax'\?"),
        ("model: {dropout: 1.0}", r"model\.dropout: expected a number from 0 to below 1, got 1\.0"),
        ("model: {hidden: 7}", r"model\.hidden: expected an even number"),
        ("model: {hidden: many}", r"model\.hidden: expected a whole number, got 'many'"),
        ("model: {kind: transformer, dim: 6, heads: 4}", r"model\.dim: expected a multiple"),
        ("model: {share_embeddings: true}", r"model\.share_embeddings needs .*data\.codec\.joint"),
        ("model: rnn", r"model is a section; give its options as model\.NAME, got 'rnn'"),
        ("optimizer: {kind: adan}", r"expected one of adam, adamw, sgd, got 'adan'; .*adam"),
        ("optimizer: {betas: 0.9}", r"optimizer\.betas: expected 2 values, got 0\.9"),
        ("optimizer: {lr: fast}", r"optimizer\.lr: expected a number, got 'fast'"),
        ("optimizer: {lr: .nan}", r"optimizer\.lr: expected a number, got nan"),
        (
            "optimizer: {lr: 0.1, schedule: {kind: halve_on_worse, floor: 0.2}}",
            r"optimizer\.schedule\.floor: expected at most optimizer\.lr = 0\.1, got 0\.2",
        ),
        ("training: {max_epochs: 2.5}", r"training\.max_epochs: expected a whole number, got 2\.5"),
        (
            "training: {max_epochs: true}",
            r"training\.max_epochs: expected a whole number, got True",
        ),
        ("training: {max_epochs: 0}", r"training\.max_epochs: expected at least 1, got 0"),
        ("training: {max_epochs: null}", r"nothing would end the run; set one of"),
        ("training: {devices: lots}", r"expected a whole number or one of auto, got 'lots'"),
        ("training: {average: 3}", r"training\.average: 3 .* raise training\.keep"),
        ("seed: 1\nseed: 2", r"line 3: seed is given twice"),
        ("seed: {a: 1}", r"seed takes one value"),
        ("seed: [1", "is not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, DATA + text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1", r"data\.train is missing; it has no default"),
        ("data: {train: a}", r"data\.validation is missing"),
        ("data: {train: [], validation: b}", r"data\.train: expected at least one path"),
        ("data: {train: a, validation: b, format: parallel}", r"parallel text is two files"),
        (
            "data: {train: a, validation: b, format: csv}",
            "expected one of inflection, parallel, tsv",
        ),
        ("data: {train: a, validation: b, codec: {source: bqe}}", r"data\.codec\.source: .*'bpe'"),
        (
            "data: {train: a, validation: b, codec: {joint: yes, source: bpe}}",
            r"data\.codec\.joint",
        ),
        ("- 1", "expected options such as 'seed: 1'"),
    ],
)
def test_mistakes_about_data(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_missing_file_suggests_one_beside(tmp_path: Path) -> None:
    load(tmp_path, DATA)
    with pytest.raises(
        ConfigError, match=r"there is no config file .*d\.yaml; did you mean .*c\.y"
    ):
        configs.load(tmp_path / "d.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        configs.load(tmp_path)


def test_an_option_without_a_value(tmp_path: Path) -> None:
    wanted = r"--model\.hidden: expected a whole number after it, got nothing"
    with pytest.raises(ConfigError, match=wanted):
        load(tmp_path, DATA, "--model.hidden", "--seed", "1")


def test_a_list_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1: expected options .* got a list"):
        load(tmp_path, "- a\n- b\n")


def test_stray_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unexpected argument 'x'.*--section\.name VALUE"):
        load(tmp_path, DATA, "x", "--seed", "3")


def test_every_rule_is_of_an_option() -> None:
    assert set(configs._RULES) <= set(all_keys(Config))
    assert set(configs._ELSEWHERE.values()) <= set(all_keys(Config))
