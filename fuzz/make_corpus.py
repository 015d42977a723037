# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of the fuzz targets: valid inputs, each also cut short and with bits flipped.

Run in this folder: python3 make_corpus.py. What a fuzzer finds later is added by hand as found_*.
"""
import json
import os
import random
import struct
import zipfile

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data")


def seeds(target, valid):
    random.seed(target)
    folder = os.path.join("corpus", target)
    os.makedirs(folder, exist_ok=True)

    def put(name, data):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)

    put("empty", b"")
    put("zeros", bytes(64))
    for i, data in enumerate(valid):
        data = data.encode() if isinstance(data, str) else data
        put(f"valid_{i}", data)
        for k, share in enumerate((0.3, 0.7, 0.97)):
            put(f"short_{i}{k}", data[:int(len(data) * share)])
        for k in range(3):
            flipped = bytearray(data)
            for _ in range(1 + 2 * k):
                flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
            put(f"flipped_{i}{k}", bytes(flipped))


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


seeds("safetensors", [
    safetensors({}, b""),
    safetensors({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16), "b": entry("BF16", [3], 16, 22),
                 "c": entry("F16", [], 22, 24), "d": entry("I64", [0, 5], 24, 24)}, bytes(range(24))),
])

made = os.path.join(DATA, "ckpt", "made_stage{}", "global_step7")
files = [os.path.join(made.format(2), "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
         os.path.join(made.format(3), "zero_pp_rank_1_mp_rank_00_model_states.pt")]
seeds("torch", [open(f, "rb").read() for f in files])
pickles = []
for f in files:
    with zipfile.ZipFile(f) as z:
        pickles.append(z.read(next(n for n in z.namelist() if n.endswith("data.pkl"))))
tensor = (b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
          b"X\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89)tRs.")
seeds("pickle", pickles + [tensor, b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R."])

seeds("json", ['{"a": [1, -2.5e3, "\\u00e9\\ud83d\\ude00\\u0000", null, true, {}], "b": ""}', "[[[[[[]]]]]]"])

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 116,
         "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 467,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": [1, 2], "torch_dtype": "float32"}
SCALED = dict(LLAMA, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 32})
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "vocab_size": 467, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}
seeds("model_config", [json.dumps(c, indent=1) for c in (LLAMA, SCALED, GPT2)])

seeds("ds_config", [
    """{ // a comment
  "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, # another
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 2e8,},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 10}},
  "bf16": {"enabled": true}, "gradient_clipping": Infinity /* hm */
}""",
    '{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}, "zero_optimization":'
    ' {"stage": 2, "overlap_comm": true, "stage3_prefetch_bucket_size": "auto"}}',
])
seeds("accelerate", [
    """compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 2
  gradient_clipping: 1.0
  offload_optimizer_device: none
  zero3_init_flag: false
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0  # a remark
main_process_ip: 192.168.1.100
main_process_port: 29500
mixed_precision: 'no'
num_machines: 2
num_processes: 16
same_network: true
tpu_env: []
""",
    """distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_offload_params: true,
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: [A, B],
  fsdp_state_dict_type: SHARDED_STATE_DICT}
parallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2}
""",
    "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\n  fsdp_backward_prefetch: NO_PREFETCH\n",
])


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in keep else chr(256 + extra)
        extra += b not in keep
    return out


alphabet = byte_alphabet()
vocab = {c: i for i, c in enumerate(alphabet.values())}
for merged in ("th", "the", "in", alphabet[32] + "t", alphabet[32] + "the"):
    vocab[merged] = len(vocab)
added = [{"id": len(vocab), "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
          "normalized": False, "special": True}]
BYTE_LEVEL = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                        "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
              "merges": [["t", "h"], ["th", "e"], ["i", "n"], [alphabet[32], "t"], [alphabet[32] + "t", "he"]][:4]}}
pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + list("\u2581abcdefghi") + ["ab", "\u2581a"]
SENTENCE_PIECE = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True} for i in range(3)],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
        "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
              "vocab": {p: i for i, p in enumerate(pieces)}, "merges": ["a b", "\u2581 a"]}}
seeds("tokenizer", [json.dumps(t, ensure_ascii=False, separators=(",", ":")) for t in (BYTE_LEVEL, SENTENCE_PIECE)])


def tokens(width, ids):
    code = {2: "H", 4: "I"}[width]
    return b"ZINCTOK1" + struct.pack("<II", width, 0) + struct.pack(f"<{len(ids)}{code}", *ids)


seeds("token_file", [tokens(2, range(20)), tokens(4, [5, 999, 0, 7, 8, 9]), tokens(2, [1000, 1])])
seeds("jsonl", [
    '{"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1]}\n{"input_ids":[4,5]}\n\n',
    '{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}\r\n{"input_ids": [999, 0]}',
])


def manifest(params, files, **more):
    return json.dumps({
        "format": "zinc-checkpoint", "version": 1, "step": 5, "applied": 4, "skipped": 1, "epoch": 0.5, "samples": 40,
        "seed": 42, "shuffle": True, "rows": 9, "tokens": 99, "train_batch_size": 8, "stage": 3, "n_ranks": 2,
        "dtype": "bfloat16", "run": "0123456789abcdef", "created_ns": 1, "model_hash": "0" * 16, "tokenizer_hash": "0" * 16,
        "loss_scaler": {"dynamic": True, "scale": 1024, "min_scale": 1, "window": 100, "hysteresis": 2, "hysteresis_left": 1,
                        "consecutive_hysteresis": False, "iteration": 3, "last_overflow": -1},
        "optimizer": "adamw", "states": ["exp_avg", "exp_avg_sq"], "hyper_parameters": {}, "schedule": {}, "config": {},
        "parameters": [{"name": n, "shape": s} for n, s in params],
        "files": [{"name": n, "bytes": b, "checksum": "0" * 16, "node": "h1"} for n, b in files], **more})


def part(rank, ranges):
    at, listed = 64, []
    for name, what, first, count in ranges:
        listed.append({"parameter": name, "what": what, "first": first, "count": count, "offset": at, "checksum": "0" * 16})
        at += 4 * count
    return json.dumps({"format": "zinc-checkpoint-part", "version": 1, "rank": rank, "n_ranks": 2,
                       "file": f"shard-0000{rank}-of-00002.safetensors", "ranges": listed})


names = [f"shard-0000{r}-of-00002.{e}" for r in range(2) for e in ("safetensors", "json")]
whats = ("master", "exp_avg", "exp_avg_sq")
seeds("manifest", [
    "\0".join([manifest([("a", [2, 5]), ("b", [3])], [(n, 1000) for n in names]),
               part(0, [("a", w, 0, 4) for w in whats] + [("b", "master", 0, 3)]), part(1, [("a", w, 4, 6) for w in whats])]),
    manifest([("a", [])], [("config.json", 3)]) + "\0" + part(0, []),
])
