#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data as users bring it, through the program: user_data.py ZINC DATA_DIR CASE.

eval_once: the held-out loss is that of `zinc eval` at any world size and batch size; packing: a packed row with boundaries has
the losses of its texts on their own; messages: conversations train, are shown, and are refused with file and line; hub: a
name is found in the cache; chat: what was learned comes back; tokenize: learn, load, encode and decode.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


class Runs:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.data, self.tmp, self.n = zinc, data, tmp, 0

    def path(self, name, rows=None, text=None):
        path = os.path.join(self.tmp, name)
        if rows is not None:
            text = "".join(json.dumps(row) + "\n" for row in rows)
        if text is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return path

    def model(self, name, tokenizer=None, template=None):
        """A copy of a model folder, with a tokenizer and its template."""
        folder = os.path.join(self.tmp, f"{name}-{tokenizer}")
        if not os.path.exists(folder):
            os.makedirs(folder)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(os.path.join(self.data, "model", name, file), folder)
            if tokenizer:
                shutil.copy(os.path.join(self.data, "tokenizer", tokenizer, "tokenizer.json"), folder)
        if template:
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"chat_template": template}, f)
        return folder

    def run(self, *argv, code=0, env=None, stdin=""):
        done = subprocess.run([self.zinc, *argv], capture_output=True, text=True, input=stdin, env={**os.environ, **(env or {})})
        if done.returncode != code:
            sys.exit(f"{' '.join(argv)}\nexit {done.returncode}, want {code}\n{done.stderr}")
        return done

    def train(self, model, rows, *more, code=0):
        self.n += 1
        out = os.path.join(self.tmp, f"out{self.n}")
        return self.run("train", "--model", model, "--train_file", rows, "--output_dir", out, "--dropout", "0", *more, code=code), out

    def eval(self, model, data, *more, **kw):
        return json.loads(self.run("eval", "--model", model, "--data", data, "--json", *more, **kw).stdout)


def check(what, ok, *shown):
    if not ok:
        sys.exit(f"{what}: {shown}")


def eval_once(runs):
    model = runs.model("llama3")
    rows = runs.path("rows.jsonl", [{"input_ids": [(11 * i * i + 17 * j) % 400 for j in range(4 + 5 * i)]} for i in range(7)])
    for dtype, flags in (("float32", []), ("bfloat16", ["--bf16"])):
        seen = set()
        for ranks, batch in ((1, 1), (1, 7), (2, 3), (3, 1), (3, 2)):
            done, out = runs.train(model, rows, "--validation_file", rows, "--max_steps", "1", "--ranks", str(ranks), "--save_dtype", "float32",
                                   "--per_device_train_batch_size", "1", "--per_device_eval_batch_size", str(batch), "--learning_rate", "0", *flags)
            loss = float(re.search(r"held-out loss ([0-9.]+)", done.stderr).group(1))
            want = runs.eval(out, rows, "--dtype", dtype)["loss"]
            check(f"{dtype}, {ranks} ranks, batch {batch}", abs(loss - want) < 6e-5, loss, want)
            seen.add(loss)
        check(f"{dtype}: one loss at every world size", len(seen) == 1, seen)


def packing(runs):
    texts = ["The first text.", "A second, longer text with more words in it.", "And the third"]
    for name, tokenizer in (("llama", "llama2"), ("llama3", "llama3"), ("qwen2", "qwen2"), ("gpt2", "gpt2")):
        model = runs.model(name, tokenizer)
        packed = runs.path("packed.jsonl", [{"text": t} for t in texts])
        parts = [runs.eval(model, runs.path(f"part{i}.jsonl", [{"text": t}])) for i, t in enumerate(texts)]
        want = sum(p["loss"] * p["targets"] for p in parts) / sum(p["targets"] for p in parts)
        got = runs.eval(model, packed, "--packing_boundaries")
        check(f"{name}: targets", got["targets"] == sum(p["targets"] for p in parts), got, parts)
        check(f"{name}: a packed row with boundaries", abs(got["loss"] - want) < 2e-6 * want, got["loss"], want)
        check(f"{name}: without boundaries texts see one another", abs(runs.eval(model, packed)["loss"] - want) > 1e-3)
        done, _ = runs.train(model, packed, "--max_steps", "1", "--per_device_train_batch_size", "1", "--packing_boundaries", "--json")
        loss = json.loads(done.stdout.splitlines()[0])["loss"]
        check(f"{name}: the loss that is trained", abs(loss - want) < 2e-6 * want, loss, want)


def messages(runs):
    model = runs.model("qwen2", "qwen2", CHATML)
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    rows = runs.path("talk.jsonl", [{"messages": talk}, {"messages": talk + talk}])
    done, out = runs.train(model, rows, "--max_steps", "1", "--show_sample")
    check("the sample", re.search(r"first of 2 training rows: \d+ tokens, (\d+) of them learned", done.stderr), done.stderr)
    check("the sample's answer", re.search(r"learned +H│e.*<\|im_end\|>\n", done.stderr), done.stderr)
    check("the template goes with the model", os.path.exists(os.path.join(out, "tokenizer_config.json")), os.listdir(out))
    apart, learner = os.path.join(runs.tmp, "apart"), runs.model("qwen2")  # a tokenizer from elsewhere brings its template along
    shutil.copytree(model, apart)
    os.remove(os.path.join(apart, "tokenizer_config.json"))
    runs.path("apart/chat_template.jinja", text=CHATML + "\n")
    _, other = runs.train(learner, rows, "--max_steps", "1", "--tokenizer", apart)
    check("what was taught with it", runs.eval(other, rows)["targets"] == runs.eval(out, rows)["targets"])
    answers, everything = runs.eval(model, rows), runs.eval(model, rows, "--loss_on", "all")
    check("targets of answers are fewer", 0 < answers["targets"] < everything["targets"], answers, everything)
    bad = runs.path("bad.jsonl", [{"messages": talk}, {"messages": [{"role": "robot", "content": ""}]}])
    done, _ = runs.train(model, bad, code=1)
    check("a wrong role", "bad.jsonl:2" in done.stderr and '"robot"' in done.stderr, done.stderr)
    runs.model("qwen2", "qwen2", CHATML.replace("im_start", "start"))
    done, _ = runs.train(model, rows, code=1)
    check("another template", "talk.jsonl:1" in done.stderr and "apply_chat_template" in done.stderr, done.stderr)


def chat(runs):
    """What was learned comes back, and the answer ends where the template ends it."""
    model = runs.model("qwen2", "qwen2", CHATML)
    said = {"Hi": "Hello.", "Bye": "See you!"}
    rows = runs.path("learn.jsonl", [{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": q},
                                                   {"role": "assistant", "content": a}]} for q, a in said.items()])
    _, out = runs.train(model, rows, "--max_steps", "60", "--learning_rate", "0.01", "--per_device_train_batch_size", "2")
    end = 402  # <|im_end|>
    for question, answer in said.items():
        argv = ["generate", "--model", out, "--chat", "--system", "S", "--prompt", question, "--json", "--max_new_tokens", "20"]
        greedy = json.loads(runs.run(*argv, "--temperature", "0").stdout)
        check(question, greedy["text"] == answer and greedy["ids"][-1] == end, greedy)
        check("top_k 1 is greedy", json.loads(runs.run(*argv, "--top_k", "1", "--temperature", "3").stdout) == greedy)
        check("top_p 0 is greedy", json.loads(runs.run(*argv, "--top_p", "0", "--temperature", "3").stdout) == greedy)
        written = f"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        ids = runs.run("tokenize", "--tokenizer", out, "--add_special_tokens=false", stdin=written).stdout.strip().replace(" ", ",")
        plain = json.loads(runs.run("generate", "--model", out, "--prompt_ids", ids, "--temperature", "0", "--json",
                                    "--max_new_tokens", str(len(greedy["ids"]))).stdout)
        check("the prompt's ids", plain["ids"] == greedy["ids"], plain, greedy)
    check("--system alone", "--chat" in runs.run("generate", "--model", out, "--prompt", "x", "--system", "S", code=2).stderr)


def hub(runs):
    cache = os.path.join(runs.tmp, "cache")
    folder = os.path.join(cache, "hub", "models--org--tiny")
    os.makedirs(os.path.join(folder, "refs"))
    os.makedirs(os.path.join(folder, "snapshots"))
    shutil.copytree(os.path.join(runs.data, "model", "gpt2"), os.path.join(folder, "snapshots", "abc123"))
    with open(os.path.join(folder, "refs", "main"), "w", encoding="utf-8") as f:
        f.write("abc123")
    rows = runs.path("ids.jsonl", [{"input_ids": [5, 6, 7, 8]}])
    env = {"HF_HOME": cache, "HF_HUB_CACHE": ""}
    want = runs.eval(os.path.join(runs.data, "model", "gpt2"), rows)
    check("a model of the cache", runs.eval("org/tiny", rows, env=env) == want)
    check("HF_HUB_CACHE", runs.eval("org/tiny", rows, env={"HF_HUB_CACHE": os.path.join(cache, "hub")}) == want)
    for argv in (["eval", "--model", "org/none", "--data", rows], ["generate", "--model", "org/none", "--prompt_ids", "1"],
                 ["train", "--model", "org/none", "--train_file", rows, "--output_dir", runs.path("none")]):
        done = runs.run(*argv, code=4, env=env)
        check(argv[0], 'snapshot_download("org/none")' in done.stderr and cache in done.stderr, done.stderr)


def tokenize(runs):
    text = "Il était une fois…\n\tThe quick brown fox; the lazy dog — 12345 日本語 🙂\n" * 20
    learned = runs.path("learned/tokenizer.json")
    os.makedirs(os.path.dirname(learned))
    runs.run("tokenize", "--train", "--vocab_size", "400", "--output", learned, runs.path("corpus.txt", text=text))
    lines = [text, "", "unseen: Ωμέγα\u2028\x00", "<|endoftext|> in the middle<|endoftext|>"]
    asked = "".join(json.dumps({"text": t, "add_special_tokens": False}) + "\n" for t in lines)
    encoded = [json.loads(line) for line in runs.run("tokenize", "--tokenizer", learned, "--json", stdin=asked).stdout.splitlines()]
    check("fewer ids than bytes", len(encoded[0]["ids"]) < len(text.encode()) / 2, len(encoded[0]["ids"]))
    asked = "".join(json.dumps({**row, "skip_special_tokens": False}) + "\n" for row in encoded)
    done = runs.run("tokenize", "--tokenizer", os.path.dirname(learned), "--json", "--decode", stdin=asked)
    check("there and back", [json.loads(line)["text"] for line in done.stdout.splitlines()] == lines, done.stdout)
    ids = runs.run("tokenize", "--tokenizer", learned, stdin="The fox").stdout
    check("plain text", runs.run("tokenize", "--tokenizer", learned, "--decode", stdin=ids).stdout == "The fox", ids)


def main():
    zinc, data, case = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="zinc-user-data-") as tmp:
        {"eval_once": eval_once, "packing": packing, "messages": messages, "chat": chat, "hub": hub, "tokenize": tokenize}[case](Runs(zinc, data, tmp))


if __name__ == "__main__":
    main()
