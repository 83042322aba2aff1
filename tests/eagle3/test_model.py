"""The drafter's forward against what the paper says, written out position by position."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from eagle3.model import Drafter, Shape, ahead, unrolled_states
from eagle3.target import Target
from eagle3.vocabulary import Vocabulary
from eagle3.weights import new_drafter
from harness.contract import ToolError

LENGTHS = [7, 2, 12]
UNROLL = 4


@pytest.fixture
def drafter(target: Target, vocabulary: Vocabulary) -> Drafter:
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=5)
    torch.nn.init.normal_(drafter.fc.weight, std=0.2)
    return drafter.double()


def one_position(
    drafter: Drafter, aux: torch.Tensor, embeds: torch.Tensor, place: int, unroll: int
) -> list[torch.Tensor]:
    """States that position `place` of one sample gets, step after step: the chain that serving would draft from there.

    Plain softmax over a list of keys that grows by one a step, from the fused states of everything up to `place`.
    """
    state = drafter.fuse(aux[: place + 1])
    keys: list[torch.Tensor] = []
    states = []
    for step in range(unroll):
        next_embeds = embeds[1 : place + 2] if step == 0 else embeds[place + 1 + step : place + 2 + step]
        positions = torch.arange(place + 1) if step == 0 else torch.tensor([place + step])

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys.append(torch.stack([key, value]))
            seen_keys, seen_values = torch.cat(keys, 1).repeat_interleave(2, 2)
            scores = torch.einsum("thd,shd->hts", query, seen_keys) / query.shape[-1] ** 0.5
            allowed = torch.ones(scores.shape[1:], dtype=torch.bool).tril(scores.shape[2] - scores.shape[1])
            return torch.einsum("hts,shd->thd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), seen_values)

        state = drafter.step(state, next_embeds, positions, attend)[-1:]
        states.append(state[0])
    return states


@torch.no_grad()
def test_packed_unrolled_steps_are_the_chain_that_serving_drafts_from_each_position(drafter: Drafter) -> None:
    torch.manual_seed(1)
    aux = torch.randn(sum(LENGTHS), 96, dtype=torch.float64)
    embeds = torch.randn(sum(LENGTHS), 32, dtype=torch.float64)
    steps = list(unrolled_states(drafter, aux, embeds, lengths=LENGTHS, unroll=UNROLL))
    start = 0
    for length in LENGTHS:
        part = slice(start, start + length)
        for place in range(length - 1):
            unroll = min(UNROLL, length - 1 - place)  # beyond that there is no next token to read
            chain = one_position(drafter, aux[part], embeds[part], place, unroll)
            for k, state in enumerate(chain):
                assert torch.allclose(steps[k][start + place], state, atol=1e-10), (length, place, k)
        start += length


@torch.no_grad()
def test_asking_for_some_positions_gives_their_states_alone(drafter: Drafter) -> None:
    aux, embeds = torch.randn(21, 96, dtype=torch.float64), torch.randn(21, 32, dtype=torch.float64)
    rows = torch.tensor([1, 4, 10, 11, 18])
    whole = unrolled_states(drafter, aux, embeds, lengths=LENGTHS, unroll=UNROLL)
    asked = unrolled_states(drafter, aux, embeds, lengths=LENGTHS, unroll=UNROLL, rows=rows)
    for every, some in zip(whole, asked, strict=True):
        assert torch.allclose(every[rows], some, atol=1e-12)


def test_ahead_stays_inside_each_sample() -> None:
    index, inside = ahead([3, 1, 2], 1)
    assert index.tolist() == [1, 2, 2, 3, 5, 5]
    assert inside.tolist() == [True, True, False, False, True, False]


def test_queries_turn_with_their_position_as_llamas_do(drafter: Drafter, target: Target) -> None:
    state, embeds = torch.randn(2, 6, 32, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 50, 51, 200])
    seen: list[torch.Tensor] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.extend([query, key])
        return query

    drafter.step(state, embeds, positions, attend)
    layer = drafter.midlayer
    both = torch.cat([layer.input_layernorm(embeds), layer.hidden_norm(state)], -1)
    query = layer.self_attn.q_proj(both).view(1, 6, 4, 8).transpose(1, 2)
    key = layer.self_attn.k_proj(both).view(1, 6, 2, 8).transpose(1, 2)
    cos, sin = LlamaRotaryEmbedding(target.config)(query, positions[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    for found, wanted in zip(seen, expected, strict=True):
        assert torch.allclose(found, wanted[0].transpose(0, 1), atol=1e-5)


def test_an_untrained_drafter_has_the_targets_head_and_norm_and_follows_its_seed(
    target: Target, vocabulary: Vocabulary
) -> None:
    shape = Shape.of(target, vocabulary, 3)
    one, same, other = (new_drafter(shape, vocabulary, target, seed=seed) for seed in (1, 1, 2))
    rows = target.model.get_output_embeddings().weight[torch.from_numpy(vocabulary.target_ids)]
    assert torch.equal(one.lm_head.weight, rows)
    assert torch.equal(one.norm.weight, target.model.get_decoder().norm.weight)
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    state = torch.randn(5, 32)
    assert torch.allclose(one.logits(state), target.head(state, one.target_ids), atol=1e-6)


def test_the_embedding_is_read_and_not_owned(drafter: Drafter) -> None:
    assert not [name for name in drafter.state_dict() if "embed" in name]
    with torch.no_grad():
        states = [
            next(unrolled_states(drafter, torch.ones(3, 96).double(), embeds.double(), lengths=[3], unroll=1))
            for embeds in (F.one_hot(torch.arange(3), 32), F.one_hot(torch.arange(3) + 9, 32))
        ]
    assert not torch.allclose(*states)


@pytest.mark.parametrize("sizes", [{"num_heads": 5}, {"num_heads": 4, "num_kv_heads": 3}, {"num_heads": 32}])
def test_heads_that_dont_divide_are_refused(target: Target, vocabulary: Vocabulary, sizes: dict[str, int]) -> None:
    with pytest.raises(ToolError, match="heads don't fit"):
        Shape.of(target, vocabulary, 3, **sizes)


def test_sizes_left_out_are_the_targets(target: Target, vocabulary: Vocabulary) -> None:
    shape = Shape.of(target, vocabulary, 3, num_heads=None, intermediate_size=48)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.intermediate_size) == (4, 2, 8, 48)
    assert Shape.of(target, vocabulary, 3, num_heads=2).num_kv_heads == 2
