"""What SGLang's (and vLLM's) LlamaForCausalLMEagle3 reads: config keys, tensor names, shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3.model import Shape


def engine_config(shape: Shape, layer_ids: Sequence[int], *, dtype: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the exported drafter; `layer_ids` in the engine's own numbers, `target` is its target's config.

    Nothing is said of norms around fc or of the state passed on: left out, both engines do what was trained.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "bos_token_id": target.get("bos_token_id"),
        "eos_token_id": target.get("eos_token_id"),
        "pad_token_id": target.get("pad_token_id"),
        "num_aux_hidden_states": shape.num_aux_layers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids), "use_aux_hidden_state": True},
    }


def engine_tensors(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Name and shape of every tensor that the loader fills for `config`; the embedding is shared with the target."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    num_aux = len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    return {
        "fc.weight": [hidden, num_aux * hidden],
        "midlayer.input_layernorm.weight": [hidden],
        "midlayer.hidden_norm.weight": [hidden],
        "midlayer.post_attention_layernorm.weight": [hidden],
        "midlayer.self_attn.q_proj.weight": [queries, 2 * hidden],
        "midlayer.self_attn.k_proj.weight": [keys, 2 * hidden],
        "midlayer.self_attn.v_proj.weight": [keys, 2 * hidden],
        "midlayer.self_attn.o_proj.weight": [hidden, queries],
        "midlayer.mlp.gate_proj.weight": [inner, hidden],
        "midlayer.mlp.up_proj.weight": [inner, hidden],
        "midlayer.mlp.down_proj.weight": [hidden, inner],
        "norm.weight": [hidden],
        "lm_head.weight": [config["draft_vocab_size"], hidden],
        "d2t": [config["draft_vocab_size"]],
        "t2d": [config["vocab_size"]],
    }
