#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the demo ends with: the sample, the loss as a drawing, the verdict.

demo_report.py FOLDER RUN; exits 1 unless the held-out loss is below 0.75 of the unigram entropy
(the held-out tokens' mean -ln p under add-one counts of the training tokens) and 80% of the
sample's words occur in the training text.
"""
import array
import collections
import json
import math
import pathlib
import re
import struct
import sys

LOSS_SHARE = 0.75
WORD_SHARE = 0.80
PROMPT = "And it came to pass"  # as in demo.sh


def read_tokens(path):
    """A .bin token file: "ZINCTOK1", uint32 bytes a token (2 or 4), uint32 0, then the ids."""
    data = path.read_bytes()
    magic, width, _ = struct.unpack_from("<8sII", data)
    if magic != b"ZINCTOK1" or width not in (2, 4):
        sys.exit(f"demo_report.py: {path} is no token file")
    tokens = array.array("H" if width == 2 else "I", data[16:])
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def unigram_entropy(train, valid, n_vocabulary):
    counts = collections.Counter(train)
    total = len(train) + n_vocabulary
    return sum(-n * math.log((counts[t] + 1) / total)
               for t, n in collections.Counter(valid).items()) / len(valid)


def draw(losses, lines=12, columns=72):
    """One '*' a column: the mean loss of that stretch of steps."""
    columns = min(columns, len(losses))
    means = []
    for c in range(columns):
        part = losses[c * len(losses) // columns:(c + 1) * len(losses) // columns]
        means.append(sum(part) / len(part))
    top, bottom = max(means), min(means)
    step = (top - bottom) / (lines - 1) or 1
    for line in range(lines):
        level = top - line * step
        marks = "".join("*" if abs(m - level) <= step / 2 else " " for m in means)
        print(f"{level:6.2f} |{marks.rstrip()}")
    print("       +" + "-" * columns)
    print(f"        step 1{' ' * max(1, columns - 12 - len(str(len(losses))))}step {len(losses)}")


def words(text):
    return re.findall(r"[A-Za-z']+", text.lower())


def main():
    folder, run = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    config = json.loads((folder / "model" / "config.json").read_text())
    losses = [row["loss"] for row in map(json.loads, (run / "metrics.jsonl").open())
              if row.get("loss") is not None]
    sample = json.loads((run / "sample.json").read_text())["text"]
    loss = json.loads((run / "eval.json").read_text())["loss"]
    entropy = unigram_entropy(read_tokens(folder / "train.bin"), read_tokens(folder / "valid.bin"),
                              config["vocab_size"])
    known = set(words((folder / "train.txt").read_text()))
    said = words(sample)[:-1]  # the last word may be cut
    share = sum(word in known for word in said) / max(1, len(said))

    print(PROMPT + sample + "\n")
    draw(losses)
    good_loss, good_words = loss < LOSS_SHARE * entropy, share >= WORD_SHARE
    print(f"\nheld-out loss {loss:.3f} nats a token; word frequencies alone give {entropy:.3f}: "
          f"{loss / entropy:.2f} of it, {'ok' if good_loss else 'NOT'} below {LOSS_SHARE}")
    print(f"{share:.0%} of the sample's {len(said)} words are words of the book, "
          f"{'ok, at least' if good_words else 'NOT'} {WORD_SHARE:.0%}")
    return 0 if good_loss and good_words and said else 1


if __name__ == "__main__":
    sys.exit(main())
