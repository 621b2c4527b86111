"""KV of models with sliding windows: groups, pages, and the three ways of counting."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sim.build import window_notes
from sim.cli.models import app
from sim.layer_groups import LayerGroups, count_kv
from sim.model import load_model, model_names

GPT_OSS = load_model("gpt-oss-20b")  # 12 full layers, 12 with a window of 128


def test_layers_of_one_kind_form_groups_as_large_as_the_rarer_kind() -> None:
    """gpt-oss 12 + 12: one group each. Llama 4 Scout 12 full + 36 local: 1 + 3 groups of 12."""
    assert LayerGroups.of(GPT_OSS) == LayerGroups(12, 1, 1, 128, 16)
    assert LayerGroups.of(load_model("llama-4-scout")) == LayerGroups(12, 1, 3, 8192, 16)
    assert LayerGroups.of(load_model("llama-3.1-8b")) == LayerGroups(32, 1, 0, 0, 16)


def test_kinds_of_almost_equal_number_make_one_group_each() -> None:
    """11 + 13 layers: two groups of 13, one of them padded, and not four of 11."""
    assert LayerGroups.of(replace(GPT_OSS, num_sliding_layers=13)) == LayerGroups(13, 1, 1, 128, 16)


def test_a_window_group_holds_the_blocks_that_its_window_touches() -> None:
    """Window 128, blocks of 16: all up to 128 tokens, then 8 or 9."""
    groups = LayerGroups.of(GPT_OSS)
    assert [groups.live_blocks(n) for n in (1, 16, 17, 128, 129, 143, 144, 145, 10_000)] == [1, 1, 2, 8, 9, 9, 8, 9, 8]
    assert groups.pages(10_000) == 625 + 8
    assert groups.hit_blocks() == 8


def test_admission_needs_no_more_than_window_and_one_step() -> None:
    """A prompt of 100,000 tokens with a budget of 1,024: 6,250 pages in full, 73 in the window group."""
    assert LayerGroups.of(GPT_OSS).most_pages(100_000, 1024) == 6250 + 73


@pytest.mark.parametrize("name", model_names())
def test_without_windows_pages_are_every_layer(name: str) -> None:
    """And ideal is that without the rounding to blocks."""
    model = replace(load_model(name), num_sliding_layers=0)
    for tokens in (1, 16, 1000):
        count = count_kv(model, tokens)
        assert count.unified_pages == count.every_layer
        assert count.ideal == round(model.layer_kv_bytes() * model.num_layers * tokens)


@given(st.integers(1, 200_000), st.sampled_from([1, 16, 64]))
def test_ideal_is_least_and_every_layer_most(tokens: int, block_size: int) -> None:
    """With groups of equal size; pages exceed ideal by at most two blocks a windowed layer, one a full one."""
    count = count_kv(GPT_OSS, tokens, block_size)
    assert count.ideal <= count.unified_pages <= count.every_layer
    block = block_size * GPT_OSS.layer_kv_bytes()
    assert count.unified_pages - count.ideal <= block * (2 * 12 + 12)


def test_models_show_prints_both_ways_of_counting() -> None:
    text = CliRunner().invoke(app, ["show", "gpt-oss-20b"]).stdout
    assert "in pages of window groups" in text
    rows = json.loads(CliRunner().invoke(app, ["show", "gpt-oss-20b", "--json"]).stdout)["kv_bytes_of_a_sequence"]
    assert [row["num_tokens"] for row in rows] == [1024, 8192, 32768, 131072]
    assert all(row["ideal"] <= row["unified_pages"] < row["every_layer"] for row in rows)


def test_a_run_says_how_much_the_kv_of_window_layers_is_overstated() -> None:
    """gpt-oss-20b: half of the layers see 128 tokens, so two groups of which one holds 9 of 512 blocks: 1.97 times."""
    note = window_notes(load_model("gpt-oss-20b"))[0]
    assert "its 12 sliding-window layers are counted as if they kept the whole context" in note
    assert "at 8,192 tokens a sequence holds 2.0 times" in note
    assert window_notes(load_model("llama-3.1-8b")) == []
