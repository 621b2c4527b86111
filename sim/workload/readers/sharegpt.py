"""ShareGPT conversations (JSON): a turn is one human message and the answer to it; its prompt is everything before it.

The file holds text: tokens are counted as characters / chars_per_token. There are no times: give `arrivals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, read_json

_MODEL = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})


def _detect(head: Head) -> bool:
    return head.kind == "json" and "conversations" in head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    conversations = read_json(source)
    if not isinstance(conversations, list):
        raise source.error(None, 'expected a list of {"id", "conversations": [{"from", "value"}, ...]}')
    facts.note(f"text counted as characters / {options.chars_per_token:g} tokens")
    facts.new_tokens_only = True
    turns: list[tuple[str, int, int]] = []
    for number, conversation in enumerate(conversations, 1):
        turns.extend(_turns(source, number, conversation, options.chars_per_token))
        if options.limit is not None and len(turns) >= options.limit:
            break
    if turns:
        yield _chunk(turns)


def _turns(source: Source, number: int, conversation: Any, ratio: float) -> Iterator[tuple[str, int, int]]:
    """(session, new prompt tokens, output tokens) of every answered turn."""
    try:
        session = str(conversation.get("id", number))
        messages = [(str(m["from"]).lower(), len(m["value"])) for m in conversation["conversations"]]
    except (AttributeError, KeyError, TypeError):
        raise source.error(
            None, f'conversation {number}: expected {{"id", "conversations": [{{"from": ..., "value": text}}, ...]}}'
        ) from None
    waiting = 0
    for who, num_chars in messages:
        if who in _MODEL and waiting:
            yield session, max(1, round(waiting / ratio)), max(1, round(num_chars / ratio))
            waiting = 0
        elif who not in _MODEL:
            waiting += num_chars


def _chunk(turns: list[tuple[str, int, int]]) -> Chunk:
    sessions, prompts, outputs = zip(*turns, strict=True)
    return Chunk(
        line=np.arange(1, len(turns) + 1),
        num_prompt_tokens=np.array(prompts, dtype=np.int64),
        num_output_tokens=np.array(outputs, dtype=np.int64),
        columns={"session_id": list(sessions)},
    )


SHAREGPT = Reader("ShareGPT conversations (JSON)", _detect, _read)
