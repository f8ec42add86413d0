#!/usr/bin/env python3
"""`tandem plan` from outside: plan_test.py BINARY MODEL [unittest arguments]. MODEL is the nano model."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BINARY, MODEL = sys.argv[1:3]
POLICIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "policies")
MACHINE = """name: test machine
source: made up
cpu: {performance_cores: 8, threads: 16, isa: avx2}
ram: {total: 64GiB, available: 60GiB, read_gbps: {1: 12, 8: 50}}
gpu: {model: test, arch: sm_86, vram_total: 24GiB, vram_free: 23GiB, copy_gbps: 900, pcie_to_card_gbps: 25,
      pcie_from_card_gbps: 25}
"""


class PlanTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = os.path.join(folder.name, "machine.yaml")
        with open(self.machine, "w", encoding="utf-8") as stream:
            stream.write(MACHINE)

    def plan(self, *arguments, model=MODEL):
        result = subprocess.run([BINARY, "plan", model, *arguments], capture_output=True, timeout=60, encoding="utf-8",
                                check=False)
        return result.returncode, result.stdout, result.stderr

    def planned(self, *arguments):
        code, out, err = self.plan(*arguments)
        self.assertEqual((code, err), (0, ""), arguments)
        return out

    def test_table(self):
        text = self.planned("--hardware", self.machine, "--what-if", "slots=20")
        for line in ("flash-next-nano-q4.gguf on test machine, policy default", "  KV cache            6.00 MiB",
                     "  drafts     dense   experts   (wait)    head  drafting     round   tokens    tok/s",
                     "  slots=20                          20     6.9 %     50.2"):
            self.assertIn(line, text)
        self.assertEqual(len(re.findall(r"^  [0-4] .* \d+\.\d+( \*)?$", text, re.M)), 5)
        self.assertEqual(text.count(" *\n"), 1)
        self.assertEqual(text, self.planned("--hardware", self.machine, "--what-if", "slots=20"))

    def test_flags_reach_the_plan(self):
        def figures(*flags):
            return json.loads(self.planned("--json", *flags))
        base = figures("--device", "cpu", "--slots", "40")
        self.assertEqual((base["card"], base["slots"], base["context"], base["kv_bits"]), ("played", 40, 4096, 16))
        self.assertEqual(len(base["slots_by_bank"]), 9)
        self.assertEqual(len(figures("--device", "cpu", "--slots", "40", "--no-mtp")["slots_by_bank"]), 8)
        self.assertEqual(figures("--device", "cpu")["card"], "none")
        other = figures("--context", "1000", "--kv", "f32", "--vram", "8GiB", "--ram", "16GiB")
        self.assertEqual((other["card"], other["context"], other["kv_bits"]), ("gpu", 1000, 32))
        self.assertEqual((other["vram"]["budget"], other["ram"]["budget"]), (15 * 2**29, 15 * 2**30))
        size = {item["what"]: item["bytes"] for item in figures("--device", "cpu")["items"]}
        less = {item["what"]: item["bytes"] for item in figures("--device", "cpu", "--prefill-chunk", "16")["items"]}
        self.assertLess(less["work memory"] * 20, size["work memory"])
        few = figures("--device", "cpu", "--draft-vocab", "256")["items"]
        notes = [item["note"] for item in few if item["what"] == "draft vocabulary"]
        self.assertEqual(notes, ["256 of 4,096 tokens", "its rows of the file"])
        self.assertNotIn("draft vocabulary", size)
        self.assertEqual(figures("--hardware", self.machine, "--vram", "0")["card"], "none")
        self.assertEqual(figures("--vram", "0")["warnings"], [])
        self.assertEqual(figures("--hardware", self.machine)["card"], "gpu")
        played = figures("--device", "cpu", "--vram", "1MiB")
        self.assertLessEqual(played["vram"]["used"], 2**20)
        self.assertGreater(played["slots"], 10)

    def test_explain(self):
        text = self.planned("--device", "cpu", "--slots", "18", "--explain", "8")
        self.assertIn("\nLayer 8 (draft block)", text)
        self.assertIn("2 of 32 experts on the card, 6.2 % of the layer's routes\n     0   3.12 %    1   3.12 %\n", text)

    def test_a_plan_that_does_not_fit(self):
        code, out, err = self.plan("--vram", "520MiB")
        self.assertEqual((code, err), (1, ""))
        self.assertRegex(out, r"\nDoes not fit: VRAM: 0\.0\d GiB needed without a single expert on the card, 0\.01 GiB")
        self.assertNotIn("Experts ", out)
        self.assertFalse(json.loads(self.plan("--vram", "520MiB", "--json")[1])["fits"])

    def test_refusals(self):
        cases = {
            ("--vram", "lots"): '--vram: expected a size such as 24GiB, 512MiB or 1.5GB, found "lots"',
            ("--ram", "-1"): '--ram: expected a size such as',
            ("--vram", "24"): '--vram: expected a size with its unit, found "24". Fix: 24GiB, 24MiB or',
            ("--what-if", "vram=1.5"): 'vram: expected a size with its unit, found "1.5"',
            ("--slots", "x"): "--slots: Value x not in range 0 to 16777216",
            ("--context", "0"): "context: expected 1 to 4096 (the trained context), found 0",
            ("--policy", os.path.join(POLICIES, "rtx3090-64gb.yaml")):
                "found 65536. Fix: --context 4096 where the command has it, or another context in /",
            ("--context", "4097"): "context: expected 1 to 4096 (the trained context), found 4097",
            ("--kv", "int3"): '--kv: expected f16 or f32, found "int3"',
            ("--device", "cuda:0"): '--device: expected auto or cpu, found "cuda:0"',
            ("--explain", "9"): "--explain: expected a layer from 0 to 8, found 9",
            ("--what-if", "size=1"): "--what-if: expected vram=SIZE, ram=SIZE, context=N or slots=N",
            ("--policy", "/nowhere.yaml"): "/nowhere.yaml: ",
            ("--hardware", "/nowhere.yaml"): "/nowhere.yaml: ",
            ("--explan", "3"): "unknown flag --explan; did you mean --explain?",
        }
        for flags, message in cases.items():
            code, out, err = self.plan(*flags)
            self.assertEqual((code, out), (2, ""), flags)
            self.assertRegex(err, r"\Atandem: error: [^\n]+\n\Z")
            self.assertIn(message, err)
        code, out, err = self.plan(model="/nowhere.gguf")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("/nowhere.gguf", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
