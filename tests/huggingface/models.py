"""Small models of every family, with weights large enough that attention matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SIZE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAIR: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
DECODERS = ("gpt2", "llama", "mistral", "opt")
PAIRS = ("t5", "bart", "marian")
FAMILIES = ("bert", "roberta", "modernbert", *DECODERS, *PAIRS)


def make(family: str, positions: int = 48) -> Any:
    """In evaluation mode; windows see fewer than the 12 words of a batch."""
    import transformers as hf  # here, so that this file can be read without it

    torch.manual_seed(0)
    places = {"max_position_embeddings": positions}
    size, pair = SIZE | places, PAIR | places
    if family == "bert":
        model: Any = hf.BertForMaskedLM(hf.BertConfig(**size))
    elif family == "roberta":
        model = hf.RobertaForMaskedLM(hf.RobertaConfig(**size))
    elif family == "modernbert":
        more = {"local_attention": 6, "global_attn_every_n_layers": 2}
        more |= {"cls_token_id": 1, "sep_token_id": 2}
        model = hf.ModernBertForMaskedLM(hf.ModernBertConfig(**size, **more))
    elif family == "gpt2":
        sizes = {
            "vocab_size": 50,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": positions,
        }
        model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    elif family == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**size, num_key_value_heads=2))
    elif family == "mistral":
        more = {"num_key_value_heads": 1, "sliding_window": 5}
        model = hf.MistralForCausalLM(hf.MistralConfig(**size, **more))
    elif family == "opt":
        sizes = {key: value for key, value in size.items() if key != "intermediate_size"}
        config = hf.OPTConfig(**sizes, ffn_dim=24, word_embed_proj_dim=16)
        model = hf.OPTForCausalLM(config)
    elif family == "t5":
        sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 24}
        near = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
        config = hf.T5Config(
            **sizes, **near, num_layers=2, num_heads=4, pad_token_id=0, decoder_start_token_id=0
        )
        model = hf.T5ForConditionalGeneration(config)
    elif family == "bart":
        model = hf.BartForConditionalGeneration(hf.BartConfig(**pair))
    else:
        model = hf.MarianMTModel(hf.MarianConfig(**pair))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.normal_(0, 0.4)
    return model.eval()


def batch(family: str, length: int = 12) -> tuple[dict[str, Tensor], Tensor]:
    """Three texts, one of them padded right and one left, and where logits are to be compared."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    mask[2, :4] = 0
    ids[mask == 0] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family not in PAIRS:
        return inputs, mask.bool()
    inputs["decoder_input_ids"] = torch.randint(3, 50, (3, length - 2), generator=generator)
    target = torch.ones_like(inputs["decoder_input_ids"])
    target[0, -2:] = 0
    target[1, :3] = 0
    inputs["decoder_attention_mask"] = target
    return inputs, target.bool()


def labels(inputs: dict[str, Tensor]) -> Tensor:
    return inputs.get("decoder_input_ids", inputs["input_ids"])


def generated(model: Any, inputs: dict[str, Tensor], cache: str) -> tuple[Any, Any]:
    """What a model writes after two texts, one padded left, without a cache and with one."""
    given = {key: inputs[key][[0, 2]] for key in ("input_ids", "attention_mask")}
    how: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    how |= {"eos_token_id": None, "output_scores": True, "return_dict_in_generate": True}
    plain = model.generate(**given, **how, use_cache=False)
    return plain, model.generate(**given, **how, cache_implementation=cache)
