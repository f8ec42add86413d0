#!/usr/bin/env python3
"""The command line from outside: texts, exit codes, messages, pipes: cli_test.py BINARY MODEL GOLDEN [unittest arguments].

GOLDEN is the folder of the model's golden data: greedy texts of an outside implementation.
"""
import csv
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BINARY, MODEL, GOLDEN = sys.argv[1:4]
CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris.\n"
RAW = "<|im_start|>user\n" + CAPITAL + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
ENDLESS = "Repeat the following text exactly: " + " ".join(["a b c d e f g"] * 60)


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def tandem(self, *arguments, given="", **options):
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder}
        result = subprocess.run([BINARY, *arguments], input=given, capture_output=True, timeout=60, env=environment,
                                encoding="utf-8", check=False, **options)
        return result.returncode, result.stdout, result.stderr

    def run_model(self, *arguments, given=""):
        """`tandem run MODEL` that has to work; returns standard output."""
        code, out, err = self.tandem("run", MODEL, *arguments, given=given)
        self.assertEqual((code, err), (0, ""), arguments)
        return out

    def refused(self, *arguments, given=""):
        """A command that has to be refused: exit code 2, one line on standard error, nothing on standard output."""
        code, out, err = self.tandem(*arguments, given=given)
        self.assertEqual((code, out), (2, ""), err)
        self.assertRegex(err, r"\Atandem: error: [^\n]+\n\Z")
        return err


class Golden(CliTest):
    def test_greedy_texts(self):
        files = sorted(glob.glob(os.path.join(GOLDEN, "*.json")))
        self.assertGreaterEqual(len(files), 7)
        for file in files:
            with open(file, encoding="utf-8") as stream:
                golden = json.load(stream)
            with self.subTest(golden["name"]):
                with open(self.path("prompt"), "w", encoding="utf-8", newline="") as stream:
                    stream.write(golden["text"])
                text = self.run_model("--raw", "--prompt-file", self.path("prompt"), "--temperature", "0",
                                      "--max-tokens", str(len(golden["greedy"])))
                wanted = re.split(r"<\|im_end\|>|<\|endoftext\|>", golden["greedy_text"])[0]
                self.assertEqual(text, wanted + "\n")


class Run(CliTest):
    def test_template_and_prompt_sources(self):
        flags = ("--no-think", "--greedy")
        self.assertEqual(self.run_model("-p", CAPITAL, *flags), PARIS)
        self.assertEqual(self.run_model("--prompt-file", "-", *flags, given=CAPITAL), PARIS)
        self.assertEqual(self.run_model("--raw", "-p", RAW, "--greedy"), PARIS)
        # A user's text is never read as template text.
        self.assertNotEqual(self.run_model("-p", RAW, *flags, "--max-tokens", "20"), PARIS)
        self.assertEqual(self.run_model("--raw", "--echo", "-p", RAW, "--greedy"), RAW + PARIS)
        thinking = self.run_model("-p", "What is 27 + 45?", "--greedy")
        self.assertEqual(thinking, "27 + 45 = 72.\n</think>\n\n27 + 45 = 72.\n")

    def test_limits(self):
        self.assertEqual(self.run_model("--raw", "-p", RAW, "--greedy", "--max-tokens", "3"), "The capital of\n")
        self.assertEqual(self.run_model("--raw", "-p", RAW, "--greedy", "--stop", "nothing", "--stop", "l of Fr"),
                         "The capita\n")
        full = self.run_model("--raw", "-p", RAW + "Repeat: a b a b a b", "--greedy", "--context", "40", "--quiet")
        self.assertTrue(full.endswith("\n"))

    def test_seed(self):
        def text(*flags):
            return self.run_model("--raw", "-p", "Once upon a time", "--max-tokens", "24", "--temperature", "1.5", *flags)
        self.assertEqual(text("--seed", "11"), text("--seed", "11", "--prefill-chunk", "1", "--workers", "1"))
        self.assertEqual(len({text("--seed", str(seed)) for seed in (11, 12, 13)} | {text(), text()}), 5)
        self.assertEqual(text("--seed", "1", "--top-k", "1"), text("--seed", "2", "--top-k", "1"))
        # A penalty that was asked for counts in greedy text too.
        greedy = self.run_model("--raw", "-p", "Once upon a time", "--max-tokens", "48", "--greedy")
        self.assertNotEqual(greedy, self.run_model("--raw", "-p", "Once upon a time", "--max-tokens", "48", "--greedy",
                                                   "--repetition-penalty", "3"))

    def test_drafts_change_nothing(self):
        def out(*flags):
            return self.run_model("--raw", "-p", "Once upon a time", "--max-tokens", "40", "--seed", "3", "--logits-hash",
                                  *flags)
        plain = out("--drafts", "0", "--lookup", "off")
        with open(self.path("words"), "w", encoding="utf-8") as stream:
            stream.write(CAPITAL * 9)
        for flags in ((), ("--drafts", "auto"), ("--drafts", "4", "--lookup", "off"), ("--drafts", "0"),
                      ("--drafts", "8", "--mtp-norm", "streams", "--mtp-attention", "dense"), ("--no-mtp",),
                      ("--draft-vocab", "500"), ("--draft-vocab", "1", "--drafts", "2"), ("--draft-vocab", "off"),
                      ("--draft-vocab", "300", "--draft-vocab-from", self.path("words"), "--drafts", "4"),
                      ("--drafts", "3", "--device", "cpu", "--slots", "100")):
            with self.subTest(flags):
                self.assertEqual(out(*flags), plain)

    def test_draft_vocabulary(self):
        def refused(*flags):
            return self.refused("run", MODEL, "-p", "x", *flags)
        for bad in ("0", "-1", "12x", "all", "16777217"):
            self.assertIn(f'--draft-vocab: expected auto, off or a number of tokens from 1 to 16777216, found "{bad}"',
                          refused(f"--draft-vocab={bad}"))
        self.assertIn("drafting.vocabulary (--draft-vocab): expected at most the 4096 tokens of the model, found 4097. "
                      "Fix: fewer, or off", refused("--draft-vocab", "4097"))
        self.assertIn("/nowhere", refused("--draft-vocab", "40", "--draft-vocab-from", "/nowhere"))
        with open(self.path("empty"), "w", encoding="utf-8"):
            pass
        self.assertIn("expected a text to count the tokens of, found an empty file",
                      refused("--draft-vocab", "40", "--draft-vocab-from", self.path("empty")))
        policy = self.path("policy.yaml")
        with open(policy, "w", encoding="utf-8") as stream:
            stream.write("drafting: {vocabulary: 300, vocabulary_from: text}\n")
        with open(self.path("text"), "w", encoding="utf-8") as stream:
            stream.write("The cat sat on the mat, and the dog sat on the mat. " * 20)
        def chosen(*flags):
            code, out, err = self.tandem("bench", "decode", MODEL, "--text", self.path("text"), "--prompt-tokens", "20",
                                         "--tokens", "9", "--segments", "1", "--repeats", "1", "--mode", "forced", *flags)
            self.assertEqual(code, 0, err)
            found = re.findall(r"^the draft head chooses among (.*)$", out, re.M)
            return (found[0] if found else None), err
        self.assertEqual(chosen("--policy", policy), ("300 of 4,096 tokens, by their number in text", ""))
        self.assertEqual(chosen("--policy", policy, "--draft-vocab", "auto", "--draft-vocab-from", "file"), (None, ""))
        self.assertEqual(chosen("--draft-vocab", "77"), ("77 of 4,096 tokens, by the tokenizer's own order", ""))
        none, err = chosen("--draft-vocab", "77", "--draft-vocab-from", "history")
        self.assertEqual(none, "77 of 4,096 tokens, by the tokenizer's own order")
        self.assertIn("tandem: warning: drafting.vocabulary_from: history: expected saved conversations, found none", err)

    def test_bench_decode(self):
        with open(self.path("text"), "w", encoding="utf-8") as stream:
            stream.write("The cat sat on the mat, and the dog sat on the mat. " * 20)
        text = ("bench", "decode", MODEL, "--text", self.path("text"))
        code, out, err = self.tandem(*text, "--drafts", "off,0,auto,2", "--prompt-tokens", "40", "--tokens", "30",
                                     "--segments", "2", "--repeats", "1", "--greedy", "--context", "256", "--rounds",
                                     self.path("rounds.csv"))
        self.assertEqual((code, err), (0, ""))
        with open(self.path("rounds.csv"), encoding="utf-8") as stream:
            rounds = list(csv.DictReader(stream))
        for kind in ("forced", "free"):  # two repeats, that which is not counted too, of two segments
            for way in ("0", "auto", "2"):  # nothing drafts with off
                mine = [r for r in rounds if (r["text"], r["drafts"]) == (kind, way)]
                self.assertEqual({(r["repeat"], r["segment"]) for r in mine}, {(a, b) for a in "01" for b in "01"})
                # The last token of a segment has no round of its own.
                self.assertTrue(4 * 28 <= sum(int(r["tokens"]) for r in mine) <= 4 * 30, mine)
                self.assertTrue(all(1 <= int(r["tokens"]) <= int(r["rows"]) for r in mine))
                self.assertTrue(all(0 < float(r["pass_ms"]) < float(r["round_ms"]) for r in mine))
        self.assertEqual([r for r in rounds if r["drafts"] == "off"], [])
        rows = re.findall(r"^  (off|0|auto|2) +([0-9.]+) +\([0-9.]+-[0-9.]+\) +([0-9.]+)", out, re.M)
        self.assertEqual([row[0] for row in rows], ["off", "0", "auto", "2"] * 2)  # forced, then free
        self.assertEqual(rows[0][2], "1.00")
        self.assertGreater(float(rows[3][2]), 2)  # the text repeats itself
        self.assertIn("forced text", out)
        self.assertEqual(len(re.findall(r"^  auto goes by passes of [0-9.]+ ms without drafts \(timed [0-9]+ times\) and "
                                        r"[0-9.]+ ms with one \([0-9]+\), [0-9.]+ ms for a draft, right with a chance of "
                                        r"[0-9]+ %: worth [+-][0-9.]+ tokens a round$", out, re.M)), 2)
        self.assertIn('--drafts: expected auto, off or 0 to 8, several separated by commas, found "9"',
                      self.refused(*text, "--tokens", "30", "--drafts", "9"))
        self.assertIn("/nowhere/r.csv: cannot create the file", self.refused(*text, "--rounds", "/nowhere/r.csv"))
        self.assertIn("expected at least 100128 tokens, found", self.refused(*text, "--tokens", "100000"))
        self.assertIn("--text /nowhere: expected a readable file, found none",
                      self.refused("bench", "decode", MODEL, "--text", "/nowhere"))

    def test_logits_hash(self):
        def lines(*flags, prompt=RAW):
            out = self.run_model("--raw", "-p", prompt, "--temperature", "0", "--logits-hash", *flags)
            self.assertRegex(out, r"\nlogits-hash: [0-9a-f]{32}\n\Z")
            return out
        first = lines()
        self.assertTrue(first.startswith(PARIS))
        self.assertEqual(first, lines("--prefill-chunk", "1"))
        self.assertEqual(first, lines("--prefill-chunk", "7", "--workers", "1", "--device", "cpu"))
        self.assertNotEqual(first, lines("--kv", "f32"))
        hashes = {lines("--max-tokens", n).split()[-1] for n in "123"}
        self.assertEqual(len(hashes), 3)  # every further position counts
        # The first answer token has no row of its own yet: the hash is that of the prompt, whatever the temperature.
        self.assertEqual(lines("--max-tokens", "1").split()[-1],
                         self.run_model("--raw", "-p", RAW, "--max-tokens", "1", "--logits-hash", "--temperature", "5",
                                        "--seed", "3").split()[-1])

    def test_state(self):
        state = self.path("france.state")
        head = self.run_model("--raw", "-p", RAW, "--greedy", "--max-tokens", "3", "--state-out", state)
        # Going on needs a token; given the one that would have come, the text goes on as it would have.
        tail = self.run_model("--raw", "-p", " Fr", "--greedy", "--state-in", state)
        self.assertEqual(head.rstrip("\n") + " Fr" + tail, PARIS)
        answer = self.run_model("-p", CAPITAL, "--no-think", "--greedy", "--state-out", state)
        self.assertEqual(answer, PARIS)
        follow = self.run_model("-p", "And of Slovenia?", "--no-think", "--greedy", "--state-in", state)
        self.assertEqual(follow, "The capital of Slovenia is Ljubljana.\n")
        with open(state, "r+b") as file:
            file.truncate(os.path.getsize(state) - 5)
        self.assertIn(state, self.refused("run", MODEL, "-p", "x", "--state-in", state))

    def test_invalid_utf8_prompt(self):
        with open(self.path("bytes"), "wb") as file:
            file.write(b"caf\xe9 \xff\xfe \xe4\xbd")
        out = self.run_model("--raw", "--prompt-file", self.path("bytes"), "--greedy", "--max-tokens", "12")
        self.assertTrue(out.endswith("\n"))  # decoding as UTF-8 in tandem() would have failed on broken characters


class Refusals(CliTest):
    def test_flags(self):
        run = ("run", MODEL, "-p", "hi")
        self.assertIn("unknown flag --tempratur; did you mean --temperature?", self.refused(*run, "--tempratur", "1"))
        self.assertIn("unknown flag --max-tokns; did you mean --max-tokens?", self.refused(*run, "--max-tokns=3"))
        self.assertIn("unknown command rnu; did you mean run?", self.refused("rnu", MODEL))
        self.assertIn("unknown argument extra", self.refused(*run, "extra"))
        self.assertIn("--temperature", self.refused(*run, "--temperature", "warm"))
        self.assertIn("from 0.01 to 100, found -1", self.refused(*run, "--temperature", "-1"))
        self.assertIn("top-p", self.refused("chat", MODEL, "--top-p", "0"))
        self.assertIn("--kv: expected f16 or f32, found \"f8\"", self.refused(*run, "--kv", "f8"))
        self.assertIn("--overflow: expected trim or stop", self.refused("chat", MODEL, "--overflow", "wrap"))
        self.assertIn("--prefill-chunk", self.refused(*run, "--prefill-chunk", "0"))
        self.assertIn("--workers", self.refused(*run, "--workers", "-2"))
        self.assertIn("MODEL is required", self.refused("run", "-p", "hi"))
        self.assertIn("reasoning effort", self.refused(*run, "--reasoning-effort", "hig"))
        self.assertIn("excludes", self.refused(*run, "--prompt-file", "x"))
        self.assertIn("excludes", self.refused(*run, "--raw", "--system", "x"))

    def test_devices(self):
        message = self.refused("run", MODEL, "-p", "hi", "--device", "cuda:7")
        self.assertRegex(message, r"--device cuda:7: expected a usable GPU, but .*\. Fix: --device cpu")
        for name in ("gpu", "cuda", "cuda:", "cuda:x", "cuda:-1"):
            self.assertIn("expected auto, cpu or cuda:N", self.refused("run", MODEL, "-p", "hi", "--device", name))

    def test_prompts(self):
        self.assertIn("expected a prompt, found none", self.refused("run", MODEL))
        self.assertIn("found an empty one", self.refused("run", MODEL, "-p", ""))
        self.assertIn("/nowhere", self.refused("run", MODEL, "--prompt-file", "/nowhere"))
        self.assertIn("found a folder", self.refused("run", MODEL, "--prompt-file", self.folder))
        message = self.refused("run", MODEL, "--raw", "-p", "a b c d " * 40, "--context", "64")
        self.assertRegex(message, r"the prompt has 1\d\d tokens, the context holds 64 .*Fix: --context 4096")
        message = self.refused("run", MODEL, "--raw", "-p", "a b c d " * 1400)
        self.assertRegex(message, r"the prompt has 5\d\d\d tokens, the context holds 4096 .*Fix: shorten the prompt")
        self.assertIn("at most 4096 positions", self.refused("run", MODEL, "-p", "x", "--context", "4097"))

    def test_files(self):
        self.assertIn("nofile.gguf", self.refused("run", "nofile.gguf", "-p", "hi"))
        with open(self.path("bad.gguf"), "wb") as file:
            file.write(b"no model at all, but long enough to hold a header" * 4)
        self.assertIn("bad.gguf", self.refused("chat", self.path("bad.gguf")))
        self.assertIn("none.state", self.refused("run", MODEL, "-p", "hi", "--state-in", self.path("none.state")))
        self.assertIn("nowhere", self.refused("run", MODEL, "-p", "hi", "--mtp", self.path("nowhere.gguf")))

    def test_help_and_version(self):
        code, out, err = self.tandem()
        self.assertEqual((code, err), (0, ""))
        for command in ("chat", "run", "inspect", "eval"):
            self.assertRegex(out, rf"(?m)^  {command} ")
            code, text, err = self.tandem(command, "--help")
            self.assertEqual((code, err), (0, ""))
            self.assertIn("Examples:", text)
        self.assertEqual(self.tandem("--help")[:2], (0, out))
        self.assertRegex(self.tandem("--version")[1], r"\Atandem \d+\.\d+\.\d+\n\Z")


class Pipes(CliTest):
    CHAT = ("chat", MODEL, "--greedy", "--no-think")

    def test_only_answers_on_stdout(self):
        given = f"{CAPITAL}\n\n   \nAnd of Slovenia?\n/undo\n/retry\n/stats\n/set top-k 5\n//x\n/quit\nnot read\n"
        code, out, err = self.tandem(*self.CHAT, given=given)
        lines = out.split("\n")
        self.assertEqual(code, 0)
        self.assertEqual(lines[:3], [PARIS.strip(), "The capital of Slovenia is Ljubljana.", PARIS.strip()])
        self.assertEqual(lines[-1], "")
        self.assertIn("answers     3:", err)
        self.assertNotIn("\x1b", out + err)

    def test_thinking_is_left_out(self):
        code, out, _ = self.tandem("chat", MODEL, "--greedy", given="What is 27 + 45?\n")
        self.assertEqual((code, out), (0, "27 + 45 = 72.\n"))

    def test_last_line_without_its_end_and_carriage_returns(self):
        code, out, err = self.tandem(*self.CHAT, given=CAPITAL + "\r\n" + CAPITAL)
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out.startswith(PARIS) and out.count("\n") == 2)
        self.assertEqual(self.tandem(*self.CHAT, given="")[:2], (0, ""))

    def test_mistakes_go_on(self):
        code, out, err = self.tandem(*self.CHAT, given=f"/hlep\n/set seed x\n/retry\n/undo\n/load nothing\n{CAPITAL}\n")
        self.assertEqual((code, out), (0, PARIS))
        self.assertIn("tandem: error: unknown command /hlep; did you mean /help?\n", err)
        self.assertEqual(err.count("tandem: error: "), 5)

    def test_closed_output_ends_quietly(self):
        for command in ([BINARY, "run", MODEL, "--raw", "-p", "Once upon a time", "--greedy", "--max-tokens", "400"],
                        [BINARY, *self.CHAT]):
            with self.subTest(command[1]):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                process.stdout.close()
                try:
                    process.stdin.write(("Tell me a story.\n" * 3).encode())
                    process.stdin.close()
                except BrokenPipeError:
                    pass
                self.assertEqual((process.stderr.read(), process.wait(60)), (b"", 0))
                process.stderr.close()

    def test_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "run", MODEL, "-p", CAPITAL, "--greedy"], stdout=full, timeout=60,
                                    stderr=subprocess.PIPE, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"No space left on device", result.stderr)

    def test_interrupt(self):
        process = subprocess.Popen([BINARY, "run", MODEL, "--no-think", "--greedy", "-p", ENDLESS],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        out, err = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - started, 5)
        self.assertEqual((process.returncode, err), (130, b""))
        # However little of the answer was there by then, it is shown, and the line ends.
        text = (first + out).decode().lower()
        self.assertTrue(text.endswith("\n"), text)
        start = text.rstrip("\n")[:5]
        self.assertEqual(start, "a b c"[:len(start)])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
