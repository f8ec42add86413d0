#!/usr/bin/env python3
"""Where experts live, from outside: placement_test.py BINARY MODEL POLICIES [unittest arguments]. MODEL is the nano model.

Every placement, every way of moving experts and every file that a run leaves behind must give the logits of a plain run.
"""
import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import unittest

BINARY, MODEL, POLICIES = sys.argv[1:4]
PROMPT = "Once upon a time there was a little house by the sea, and in it lived"
TEXT = " ".join(f"In the year {year} the harvest was good and the people sang." for year in range(1700, 1712))
RUN = ("run", MODEL, "--raw", "-p", PROMPT, "--greedy", "--max-tokens", "16", "--logits-hash")
EXPERTS, BANKS = 288, 9


class PlacementTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def tandem(self, *arguments, given=""):
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder}
        result = subprocess.run([BINARY, *arguments], input=given, capture_output=True, timeout=120, env=environment,
                                encoding="utf-8", check=False)
        return result.returncode, result.stdout, result.stderr

    def run_model(self, *flags):
        code, out, err = self.tandem(*RUN, *flags)
        self.assertEqual((code, re.sub(r"tandem: warning: .*(locked|CPU workers).*\n", "", err)), (0, ""), flags)
        return out

    def refused(self, *arguments):
        code, out, err = self.tandem(*arguments)
        self.assertEqual((code, out), (2, ""), err)
        self.assertRegex(err, r"\Atandem: error: [^\n]+\n\Z")
        return err

    def slots(self, path):
        """The experts of a slots file, by bank."""
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        self.assertEqual((lines[0], lines[2], lines[-1]), ("tandem slots 1", f"banks {BANKS} experts 32", ""))
        return [[int(word) for word in line.split(":")[1].split()] for line in lines[3:-1]]


class SameText(PlacementTest):
    def test_wherever_the_experts_are(self):
        plain = self.run_model()
        self.assertRegex(plain, r"\nlogits-hash: [0-9a-f]{32}\n\Z")
        for flags in (("--slots", "0"), ("--slots", "50"), ("--slots", str(EXPERTS)), ("--vram", "6MiB"),
                      ("--device", "cpu", "--slots", "100", "--workers", "3"),
                      ("--policy", os.path.join(POLICIES, "demo.yaml")),
                      ("--hardware", os.path.join(POLICIES, "../hardware/rtx3090-64gb.yaml"), "--slots", "30"),
                      ("--policy", os.path.join(POLICIES, "demo.yaml"), "--adapt", "lru", "--prefill-chunk", "3")):
            with self.subTest(flags):
                self.assertEqual(self.run_model(*flags), plain)

    def test_however_they_move(self):
        plain, kept = self.run_model(), set()
        for mode in ("off", "lru", "lfu", "swaps"):
            with self.subTest(mode):
                file = self.path(mode)
                self.assertEqual(self.run_model("--slots", "50", "--adapt", mode, "--slots-file", file), plain)
                kept.add(str(self.slots(file)))
        self.assertEqual(len(kept), 4)  # each way ends with other experts on the card


    def test_pinned_experts_stay(self):
        file = self.path("slots")
        policy = self.path("policy.yaml", "memory: {slots: 50}\nadapt: {mode: lru}\nexperts:\n"
                                          "  pins: [{layers: 0-8, experts: 3}]\n  bans: [{layers: 2-4, experts: [7, 20-22]}]\n")
        for _ in range(2):  # the second time from the file
            self.assertEqual(self.run_model("--policy", policy, "--slots-file", file), self.run_model())
            kept = self.slots(file)
            self.assertEqual(sum(map(len, kept)), 50)
            for experts in kept:
                self.assertIn(3, experts)
            for experts in kept[2:5]:
                self.assertFalse({7, 20, 21, 22} & set(experts))


class SlotsFile(PlacementTest):
    def test_a_policy_keeps_them(self):
        """adapt.save_slots: a file of the model's own in the user's folder, unless --slots-file names one."""
        def policy(mode):
            return self.path(mode + ".yaml", "memory: {slots: 50}\nadapt: {mode: %s, save_slots: true}\n" % mode)
        folder = os.path.join(self.folder, ".local", "state", "tandem")
        plain = self.run_model()
        self.assertEqual(self.run_model("--policy", policy("lru")), plain)
        (name,) = [name for name in os.listdir(folder) if name.startswith("slots-")]
        file = os.path.join(folder, name)
        first = self.slots(file)
        self.assertEqual(sum(map(len, first)), 50)
        self.assertEqual(self.run_model("--policy", policy("off")), plain)
        self.assertEqual(self.slots(file), first)
        # What measures neither begins with them nor changes them; a folder that cannot be made is said.
        text = self.path("text.txt", TEXT)
        for command in (("profile", MODEL, "--text", text, "--window", "64", "-o", self.path("c.csv")),
                        ("bench", "decode", MODEL, "--text", text, "--tokens", "4", "--prompt-tokens", "4",
                         "--segments", "1", "--repeats", "1", "--mode", "forced", "--drafts", "off")):
            code, _, err = self.tandem(*command, "--policy", policy("lfu"))
            self.assertEqual(code, 0, err)
            self.assertEqual(self.slots(file), first)
        self.assertEqual(os.listdir(folder), [name])
        other = self.path("other")
        self.run_model("--policy", policy("off"), "--slots-file", other)
        self.assertNotEqual(self.slots(other), first)
        self.assertEqual(self.slots(file), first)
        with open(file, "w", encoding="utf-8") as damaged:
            damaged.write("rubbish\n")
        code, out, err = self.tandem(*RUN, "--policy", policy("off"))
        self.assertEqual((code, out), (0, plain))
        self.assertRegex(err, r"tandem: warning: .*slots-[0-9a-f]{16}\.txt.*begun as planned, and written anew")
        self.assertEqual(self.slots(file), self.slots(other))

    def test_the_next_run_begins_where_the_last_ended(self):
        file = self.path("slots")
        flags = ("--slots", "50", "--slots-file", file)
        plain = self.run_model()
        self.assertEqual(self.run_model(*flags, "--adapt", "lru"), plain)
        first = self.slots(file)
        self.assertEqual(sum(map(len, first)), 50)
        # Nothing moves, so what was read is what is written.
        self.assertEqual(self.run_model(*flags, "--adapt", "off"), plain)
        self.assertEqual(self.slots(file), first)
        unread = self.path("other")
        self.run_model("--slots", "50", "--adapt", "off", "--slots-file", unread)
        self.assertNotEqual(self.slots(unread), first)
        # Fewer slots: some of them stay. More: all of them, and others.
        self.run_model("--slots", "20", "--slots-file", file, "--adapt", "off")
        fewer = self.slots(file)
        self.assertEqual(sum(map(len, fewer)), 20)
        for bank, experts in enumerate(fewer):
            self.assertLessEqual(set(experts), set(first[bank]))
        self.run_model("--slots", "80", "--slots-file", file, "--adapt", "off")
        more = self.slots(file)
        self.assertEqual(sum(map(len, more)), 80)
        for bank, experts in enumerate(fewer):
            self.assertLessEqual(set(experts), set(more[bank]))
        self.assertEqual(os.listdir(self.folder).count("slots.tmp"), 0)

    def test_damage_is_refused(self):
        file = self.path("slots")
        self.run_model("--slots", "50", "--slots-file", file)
        with open(file, encoding="utf-8") as stream:
            good = stream.read()
        fix = ". Fix: delete the file; the next run writes a new one"
        flags = (*RUN, "--slots", "50", "--slots-file", file)
        self.path("slots", good[:-1])
        self.assertIn(f"{file}:12: expected a line that ends, found the end of the file{fix}", self.refused(*flags))
        self.path("slots", good.replace("\n0: ", "\n0: 32 "))
        self.assertIn(f"{file}:4: expected ascending experts below 32, found another value{fix}", self.refused(*flags))
        self.path("slots", re.sub(r"model \w{4}", "model 0000", good))
        self.assertIn(f"{file}:2: expected \"model ", self.refused(*flags))
        self.path("slots", good)
        # The draft block's bank is gone.
        self.assertIn(f'{file}:3: expected "banks 8 experts 32"', self.refused(*flags, "--no-mtp"))
        with open(file, encoding="utf-8") as stream:
            self.assertEqual(stream.read(), good)

    def test_without_a_card_it_has_no_effect(self):
        file = self.path("slots")
        code, out, err = self.tandem(*RUN, "--slots-file", file)
        self.assertEqual((code, out), (0, self.run_model()))
        self.assertEqual(err, "tandem: warning: --slots-file has no effect: no expert is on a card. Fix: --slots N, or "
                              "leave it out\n")
        self.assertFalse(os.path.exists(file))

    def test_places_that_cannot_be_written_are_refused_first(self):
        for flag in ("--slots-file", "--timeline"):
            message = self.refused(*RUN, "--slots", "9", flag, "/nowhere/file")
            self.assertIn("/nowhere/file: cannot create the file: No such file or directory", message)
            self.assertIn("File name too long", self.refused(*RUN, "--slots", "9", flag, "x" * 300))
        self.assertIn("expected a slots file, found a folder", self.refused(*RUN, "--slots", "9", "--slots-file", "/tmp"))


class Timeline(PlacementTest):
    def spans(self, *arguments, **options):
        file = self.path("t.json")
        code, out, err = self.tandem(*arguments, "--timeline", file, **options)
        self.assertEqual(code, 0, err)
        with open(file, encoding="utf-8") as stream:
            events = json.load(stream)["traceEvents"]
        os.remove(file)
        names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        self.assertEqual(names[0], "main")
        return out, {name: [event for event in events if event["ph"] == "X" and event["name"] == name]
                     for name in {event["name"] for event in events if event["ph"] == "X"}}, names

    def test_run(self):
        plain = self.run_model("--slots", "100")
        out, spans, names = self.spans(*RUN, "--slots", "100", "--workers", "2", "--no-mtp", "--lookup", "off")
        self.assertEqual(out, plain)
        self.assertIn("crew 1", names.values())
        for name in ("head", "matmul", "experts on the card", "shared expert", "wait for the crew", "copies"):
            self.assertIn(name, spans)
        passes = sum("args" not in span for span in spans["head"])  # of the trunk; the draft block's have its layer
        layers = [span["args"]["layer"] for span in spans["mix before the experts"]]
        self.assertEqual([layers.count(layer) for layer in range(BANKS - 1)], [passes] * (BANKS - 1))
        self.assertGreater(passes, 4)

    def test_the_other_commands(self):
        text = self.path("text", TEXT)
        for command in (("eval", MODEL, "--text", text), ("eval", MODEL, "--text", text, "--reference"),
                        ("profile", MODEL, "--text", text, "-o", self.path("x.census.csv")),
                        ("bench", "decode", MODEL, "--text", text, "--prompt-tokens", "4", "--tokens", "4", "--segments",
                         "1", "--repeats", "1", "--drafts", "off", "--mode", "forced")):
            with self.subTest(command):
                slots = self.path("slots")
                _, spans, _ = self.spans(*command, "--slots", "40", "--slots-file", slots)
                self.assertIn("experts on the card", spans)
                self.assertEqual(sum(map(len, self.slots(slots))), 40)
                os.remove(slots)
        _, spans, _ = self.spans("chat", MODEL, "--greedy", "--no-think", "--slots", "40", given="Hello!\n")
        self.assertIn("experts on the card", spans)


class Refusals(PlacementTest):
    def test_too_little_ram(self):
        message = self.refused(*RUN, "--ram", "1MiB", "--timeline", self.path("t.json"))
        self.assertRegex(message, r"nano-q4\.gguf: RAM: 0\.0\d GiB needed without a single expert in RAM, 0\.00 GiB "
                                  r"allowed after the reserve: 0\.0\d GiB short\. Fix: a smaller model file")
        self.assertEqual(os.listdir(self.folder), [])
        code, out, _ = self.tandem("plan", MODEL, "--device", "cpu", "--ram", "1MiB")
        self.assertEqual(code, 1)
        self.assertIn("Does not fit: RAM: 0.0", out)
        self.assertIn("RAM: 0.0", self.refused("chat", MODEL, "--ram", "1MiB"))

    def test_flags(self):
        self.assertIn('--adapt: expected off or lru or lfu or swaps, found "fifo"', self.refused(*RUN, "--adapt", "fifo"))
        self.assertIn('--vram: expected a size such as 24GiB, 512MiB or 1.5GB, found "much"',
                      self.refused(*RUN, "--vram", "much"))
        self.assertIn("--slots: Value -1 not in range 0 to 16777216", self.refused(*RUN, "--slots", "-1"))
        self.assertIn("/nowhere.yaml: expected a policy file", self.refused(*RUN, "--policy", "/nowhere.yaml"))
        self.assertIn("/nowhere.yaml: expected a hardware", self.refused(*RUN, "--hardware", "/nowhere.yaml"))

    def test_lossy_switches(self):
        policy = self.path("lossy.yaml", "lossy:\n  tail_route_skip: 0.3\n")
        flags = ("--logits-hash", "--slots", "60", "--adapt", "off")
        code, exact, err = self.tandem(*RUN, *flags)
        self.assertEqual((code, err), (0, ""))
        code, lossy, err = self.tandem(*RUN, *flags, "--policy", policy, "--drafts", "2")
        self.assertEqual(code, 0)
        self.assertRegex(err, r"\Atandem: warning: LOSSY: tail-route skip 0\.3\. The text is not that of the model: it "
                              r"depends on which experts are on the card\. [^\n]+\n\Z")
        self.assertNotEqual(lossy.splitlines()[-1], exact.splitlines()[-1])
        # Flags go before the policy, either way; one answer for a fixed placement, whatever is drafted.
        code, off, err = self.tandem(*RUN, *flags, "--policy", policy, "--lossy-tail-route-skip", "0")
        self.assertEqual((code, off, err), (0, exact, ""))
        code, on, _ = self.tandem(*RUN, *flags, "--lossy-tail-route-skip", "0.3", "--drafts", "0", "--workers", "1")
        self.assertEqual((code, on), (0, lossy))
        code, _, err = self.tandem(*RUN, *flags, "--lossy-biased-acceptance", "on")
        self.assertEqual(code, 0)
        self.assertIn("LOSSY: biased acceptance. The text", err)

    def test_lossy_certificate(self):
        text = self.path("text.txt", "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps.\n" * 3)
        csv = os.path.join(self.folder, "out.csv")
        code, out, _ = self.tandem("eval", MODEL, "--text", text, "--slots", "60", "--adapt", "off", "--lossy",
                                   "--lossy-tail-route-skip", "0.2", "--lossy-biased-acceptance", "on", "--json",
                                   "--per-position", csv)
        self.assertEqual(code, 0)
        result = json.loads(out)
        self.assertGreater(result["tail_route_skip"]["total_variation"]["mean"], 0)
        self.assertGreater(result["tail_route_skip"]["weight_skipped"], 0)
        self.assertEqual(result["biased_acceptance"]["head"]["positions"], result["positions"] - 1)
        self.assertGreater(result["biased_acceptance"]["lookup"]["positions"], 10)
        with open(csv, encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), result["positions"] + 1)
        code, out, _ = self.tandem("eval", MODEL, "--text", text, "--lossy", "--lossy-tail-route-skip", "0.2")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\Acertificate of tail-route skip 0\.2: \d+ tokens, ")
        self.assertIn("eval --lossy: expected a lossy switch that is on, found none. Fix: ",
                      self.refused("eval", MODEL, "--text", text, "--lossy"))
        self.assertIn("expected --reference or --lossy, found both",
                      self.refused("eval", MODEL, "--text", text, "--lossy", "--reference"))
        self.assertIn("expected --lossy or --last, found both",
                      self.refused("eval", MODEL, "--text", text, "--lossy", "--last", "3"))
        self.assertIn("--lossy-tail-route-skip: Value 0.6 not in range", self.refused(*RUN, "--lossy-tail-route-skip", "0.6"))


class Locking(PlacementTest):
    def test_experts_that_cannot_be_locked(self):
        def nothing_may_be_locked():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            if os.geteuid() == 0:  # root may lock all the same
                os.setresuid(65534, 65534, 65534)

        def warnings(*flags):
            result = subprocess.run([BINARY, *RUN, *flags], capture_output=True, timeout=120, encoding="utf-8", check=False,
                                    preexec_fn=nothing_may_be_locked)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stderr
        with open(BINARY, "rb") as program:
            if re.search(rb"__[at]san_init", program.read()):
                self.skipTest("a sanitizer keeps mlock from locking")
        if not all(os.stat(os.path.abspath(path)).st_mode & 4 for path in (BINARY, MODEL)):
            self.skipTest("another user cannot read the program and the model")
        self.assertRegex(warnings("--slots", "50"),
                         r"\Atandem: warning: 0 B of [0-9.]+ MiB of the experts in RAM are locked \(.*; limit 0 B\), so under")
        self.assertEqual(warnings(), "")
        policy = self.path("policy.yaml", "memory: {slots: 50}\ncrew: {lock_memory: false}\n")
        os.chmod(self.folder, 0o755)
        self.assertEqual(warnings("--policy", policy), "")


class Words(PlacementTest):
    STATUS = r"\| (\d+\.\d) % hits, (\d+\.\d) misses a round, (?:crew wait \d+\.\d\d ms, )?(\d+) swaps?"

    def test_a_played_card(self):
        _, plain, _ = self.tandem("plan", MODEL, "--device", "cpu", "--vram", "2MiB")
        self.assertRegex(plain, r"\nPlayed    [0-9.]+ MiB of 2\.00 MiB\n")
        planned = int(re.search(r"(\d+) of 288 experts", plain).group(1))
        slots = self.path("slots")
        self.run_model("--vram", "2MiB", "--slots-file", slots)
        self.assertEqual(sum(map(len, self.slots(slots))), planned)

    def test_chat(self):
        given = "What is the capital of France?\n/stats\n/plan\n"
        code, out, err = self.tandem("chat", MODEL, "--greedy", "--no-think", "--slots", "50", "--adapt", "swaps",
                                     given=given)
        self.assertEqual((code, out), (0, "The capital of France is Paris.\n"))
        self.assertRegex(err, r"\n  experts     50 on the card \([0-9.]+ [KM]iB\), 238 in RAM \([0-9.]+ MiB, [0-9.]+ "
                              r"[KM]?i?B locked\), 0 in the file\n")
        for phase in ("prompt", "answer"):
            found = re.search(rf"\n  {phase} hits (\d+\.\d) % of routes and (\d+\.\d) % of expert bytes on the card, "
                              r"(\d+\.\d) misses a round, (\d+) swaps? \([^)]+\), (\d+) tokens in (\d+) rounds?\n", err)
            self.assertIsNotNone(found, err)
            self.assertTrue(0 < float(found.group(1)) < 100)
        self.assertRegex(err, r"\n  waiting     (\d+\.\d\d ms a round for the crew, \d+\.\d\d ms|\d+\.\d\d ms a round) for moves \(answer\)\n")
        for line in ("flash-next-nano-q4.gguf on this machine, the CPU playing the card, policy default",
                     "  expert slots        2.13 MiB   50 of 288 experts, 5 to 6 a layer",
                     "  limit             slots: the policy allows 50"):
            self.assertIn("  " + line + "\n", err)
        # Without a card there is no talk of hits.
        _, _, err = self.tandem("chat", MODEL, "--greedy", "--no-think", given="Hello!\n/stats\n")
        self.assertIn("\n  experts     0 on the card (0 B), 288 in RAM", err)
        self.assertNotIn("hits", err)

    def test_the_status_line(self):
        def status(*flags):
            main, side = pty.openpty()
            process = subprocess.Popen([BINARY, *RUN, *flags], stdout=subprocess.DEVNULL, stderr=side)
            os.close(side)
            text = b""
            while True:
                try:
                    chunk = os.read(main, 4096)
                except OSError:  # the other side is closed
                    break
                if not chunk:
                    break
                text += chunk
            os.close(main)
            self.assertEqual(process.wait(60), 0)
            return text.decode()
        found = re.search(self.STATUS, status("--slots", "50", "--adapt", "lru"))
        self.assertIsNotNone(found)
        self.assertGreater(int(found.group(3)), 10)
        self.assertTrue(0 < float(found.group(1)) < 100)
        self.assertRegex(status("--slots", str(EXPERTS)), r"\| 100\.0 % hits, 0\.0 misses a round, .*0 swaps")
        self.assertNotIn("hits", status())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
