#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What full offload costs on the stand-in accelerator, beside the plan: overlap.py ZINC [--rounds N] [--realtime]

Trains a random Llama of 30 million parameters at stage 3, one rank, in bf16: all on the device; optimizer and parameters on the host
over a link on which a layer's transfers take less than its computation; and over a slow one. Each round runs all of them in turn, with
clipping and without. Prints one JSON object for each: best step of all rounds, its ratio to the step without offload, and what
`zinc plan` predicts for the slow link: its critical path for this machine as it measures it, and for the computation that the step
without offload took (less its update, which the plan knows).
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

TOKENS, ROWS, STEPS = 256, 8, 4
FAST, SLOW = "12GB/s", "100MB/s"
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408,
         "num_hidden_layers": 8, "num_attention_heads": 8, "max_position_embeddings": TOKENS, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "initializer_range": 0.02, "tie_word_embeddings": False}


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(SHAPE))
        rows = [json.dumps({"input_ids": [(7 * i * i + 13 * j) % 4000 for j in range(TOKENS)]}) for i in range(64)]
        (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")

    def config(self, clip, offload):
        zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
        if offload:
            zero.update(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})
        path = self.folder / "ds.json"
        path.write_text(json.dumps({"train_micro_batch_size_per_gpu": ROWS, "bf16": {"enabled": True}, "gradient_clipping": clip,
                                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": zero}))
        return str(path)

    def step_ms(self, clip, offload, link):
        out = self.folder / "out"
        argv = ["chrt", "-r", "1"] if self.args.realtime else []
        argv += [self.args.zinc, "train", "--model", str(self.folder / "model" / "config.json"), "--from_scratch", "--train_file",
                 str(self.folder / "rows.jsonl"), "--deepspeed", self.config(clip, offload), "--max_steps", str(STEPS), "--output_dir",
                 str(out), "--overwrite_output_dir", "--threads", "1", "--block_size", str(TOKENS), "--share_parameters", "false",
                 "--link_bandwidth", link, "--save_steps", "0", "--logging_steps", "1"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line)["step_ms"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        return min(rows[1:])

    def plan(self, clip, offload, link, *more):
        argv = ["chrt", "-r", "1"] if self.args.realtime else []
        argv += [self.args.zinc, "plan", "--model", str(self.folder / "model"), "--deepspeed", self.config(clip, offload), "--preset", "cpu",
                 "--link", link, "--threads", "1", "--block_size", str(TOKENS), "--json", *more]
        return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)

    def planned_ms(self, clip, link, without_offload_ms):
        """Predicted; and with the computation of a measured step."""
        compute_ms = without_offload_ms - self.plan(clip, False, link)["times_ms"]["optimizer"]
        return self.plan(clip, True, link)["step_ms"], self.plan(clip, True, link, "--compute_time", f"{compute_ms}ms")["step_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zinc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--realtime", action="store_true", help="before all else on the machine (chrt)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, pathlib.Path(folder))
        for clip in (0.0, 1.0):
            best = {}
            for _ in range(args.rounds):
                for name, offload, link in (("none", False, FAST), ("fast", True, FAST), ("slow", True, SLOW)):
                    best[name] = min(best.get(name, 1e9), bench.step_ms(clip, offload, link))
            predicted, planned = bench.planned_ms(clip, SLOW, best["none"])
            print(json.dumps({"clipping": clip, "without_offload_ms": best["none"], "fast_link_ms": best["fast"],
                              "fast_ratio": round(best["fast"] / best["none"], 3), "slow_link_ms": best["slow"], "slow_predicted_ms": predicted,
                              "slow_planned_ms": planned,
                              "slow_over_planned": round(best["slow"] / planned, 3)}), flush=True)


if __name__ == "__main__":
    main()
