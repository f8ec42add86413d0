#!/usr/bin/env python3
"""`tandem profile`, `census` and `replay` from outside: profile_test.py BINARY MODEL EVAL [unittest arguments].

EVAL is the folder of held-out texts. Census and trace are read by code of this test's own, and the hits of a placement that
does not change are counted here again.
"""
import collections
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BINARY, MODEL, EVAL = sys.argv[1:4]
BANKS, EXPERTS, USED = 9, 32, 6


def read_census(path):
    """{(domain, phase, bank): counts}, checked line by line."""
    counts, rows = {}, {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split(",")
            if fields[0] == "rows":
                rows[fields[1], fields[2]] = int(fields[3])
            if fields[0] == "routes":
                values = list(map(int, fields[5:]))
                assert len(values) == EXPERTS and sum(values) == USED * int(fields[4]), line
                counts[fields[1], fields[2], int(fields[3])] = values
                if fields[3] == "0":
                    assert int(fields[4]) == rows[fields[1], fields[2]], line
    return counts


def read_trace(path):
    """[(phase, domain, [(bank, rows, ids)])], by the table in docs/formats.md."""
    with open(path, "rb") as file:
        data = file.read()
    magic, version, _, banks, experts, used, name = struct.unpack_from("<8sIQIIII", data)
    assert (magic, version, banks, experts, used) == (b"TANDEMTR", 2, BANKS, EXPERTS, USED)
    at = 36 + name + 8
    rounds, domain = [], None
    while True:
        (size,) = struct.unpack_from("<I", data, at)
        if size == 0:
            assert struct.unpack_from("<Q", data, at + 4)[0] == len(rounds)
            assert len(data) == at + 20
            return rounds
        chunk, at, i = data[at + 4:at + 4 + size], at + 12 + size, 0

        def varint():
            nonlocal i
            value = shift = 0
            while True:
                byte = chunk[i]
                i += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while i < size:
            tag = varint()
            if tag == 1:
                n = varint()
                domain = chunk[i:i + n].decode()
                i += n
                continue
            blocks = []
            varint()  # position
            for _ in range(varint()):
                bank, rows = varint(), varint()
                n = (rows * used * 5 + 7) // 8  # 32 experts: 5 bits
                bits = int.from_bytes(chunk[i:i + n], "little")
                i += n
                blocks.append((bank, rows, [bits >> (5 * k) & 31 for k in range(rows * used)]))
            rounds.append(({2: "prefill", 3: "decode"}[tag], domain, blocks))


def add_up(rounds):
    counts = collections.defaultdict(lambda: [0] * EXPERTS)
    for phase, domain, blocks in rounds:
        for bank, _, ids in blocks:
            for expert in ids:
                counts[domain, phase, bank][expert] += 1
    return counts


class ProfileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def text(self, name, size, source=None):
        with open(os.path.join(EVAL, source or name), encoding="utf-8") as file:
            content = file.read()[:size]
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content)
        return self.path(name)

    def tandem(self, *arguments, expect=0):
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder}
        result = subprocess.run([BINARY, *arguments], capture_output=True, timeout=300, env=environment, check=False,
                                encoding="utf-8")
        self.assertEqual(result.returncode, expect, result.stderr)
        if expect != 0:
            self.assertEqual(result.stdout, "")
        return result.stdout if expect == 0 else result.stderr

    def refused(self, *arguments):
        message = self.tandem(*arguments, expect=2)
        self.assertRegex(message, r"\Atandem: error: [^\n]+\n\Z")
        return message


class Profile(ProfileTest):
    def test_census_and_trace_of_two_domains(self):
        chat = self.text("chat.txt", 3000)
        out = self.tandem("profile", MODEL, "--text", self.text("some code.txt", 2000, "code.txt"), "--chat", chat,
                          "--window", "256", "--prefill-chunk", "100", "--decode-tokens", "8", "-o", self.path("a.csv"),
                          "--trace", self.path("a.trace"))
        census, rounds = read_census(self.path("a.csv")), read_trace(self.path("a.trace"))
        self.assertEqual({key[:2] for key in census}, {("chat", "prefill"), ("chat", "decode"), ("some-code", "prefill"),
                                                       ("some-code", "decode")})
        counted = add_up(rounds)
        for key, values in census.items():
            self.assertEqual(values, counted[key], key)
        # Passes of at most 100 rows, every bank of the trunk in order.
        for phase, _, blocks in rounds:
            trunk = [block for block in blocks if block[0] < BANKS - 1]
            self.assertEqual([block[0] for block in trunk], list(range(BANKS - 1)))
            self.assertEqual(len({block[1] for block in trunk}), 1)
            self.assertTrue(1 <= trunk[0][1] <= 100)
            if phase == "decode":
                self.assertEqual(trunk[0][1], 1)
        # The chat log's special tokens are one token each: fewer rows than the same text as plain text.
        self.tandem("profile", MODEL, "--text", chat, "--domain", "plain", "-o", self.path("b.csv"))
        plain = sum(read_census(self.path("b.csv"))["plain", "prefill", 0])
        self.assertLess(sum(census["chat", "prefill", 0]), plain)
        self.assertRegex(out, r"(?m)^some-code +prefill +\d+ +\d+\.\d% +\d+\.\d% +\d+\.\d%$")

    def test_chat_logs(self):
        messages = [{"role": "user", "content": "Hello <|im_end|>"}, {"role": "assistant", "content": "Hi."}]
        rows = {}
        for name, content in {"list.json": messages, "object.json": {"messages": messages},
                              "saved.json": {"format": "tandem-conversation", "tokens": [5, 6, 7]}}.items():
            with open(self.path(name), "w", encoding="utf-8") as file:
                json.dump(content, file)
            self.tandem("profile", MODEL, "--chat", self.path(name), "--domain", "c", "-o", self.path("c.csv"))
            rows[name] = sum(read_census(self.path("c.csv"))["c", "prefill", 0]) // USED
        self.assertEqual(rows["saved.json"], 3)
        self.assertEqual(rows["list.json"], rows["object.json"])
        self.assertGreater(rows["list.json"], 10)
        with open(self.path("bad.json"), "w", encoding="utf-8") as file:
            json.dump({"format": "tandem-conversation", "tokens": [5, 99999]}, file)
        self.assertIn("expected token ids from 0 to 4095, found 99999",
                      self.refused("profile", MODEL, "--chat", self.path("bad.json"), "-o", self.path("c.csv")))

    def test_interrupt_and_resume_give_the_same_files(self):
        text = self.text("prose.txt", 30000)
        flags = ["profile", MODEL, "--text", text, "--window", "128", "--decode-tokens", "16"]
        whole = [*flags, "-o", self.path("whole.csv"), "--trace", self.path("whole.trace")]
        self.tandem(*whole)
        parts = [*flags, "-o", self.path("part.csv"), "--trace", self.path("part.trace")]
        process = subprocess.Popen([BINARY, *parts], stderr=subprocess.PIPE, encoding="utf-8",
                                   env={"PATH": os.environ["PATH"], "HOME": self.folder})
        while process.poll() is None and not os.path.exists(self.path("part.trace.tmp")):
            time.sleep(0.01)  # from here on Ctrl-C is caught
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertRegex(err, r"stopped after \d+ of \d+ windows; .*part\.csv has their counts, the same command with "
                              r"--resume goes on\n\Z")
        partial = read_census(self.path("part.csv"))
        self.assertEqual({k: v for k, v in add_up(read_trace(self.path("part.trace"))).items()},
                         {k: v for k, v in partial.items() if any(v)})
        self.tandem("census", "show", self.path("part.csv"))
        self.assertIn("expected no unfinished profile of that name, found one. Fix: --resume, or remove the file",
                      self.refused(*parts))
        self.assertIn("--resume: expected a run with",
                      self.refused(*parts, "--resume", "--prefill-chunk", "64"))
        self.tandem(*parts, "--resume")
        for kind in ("csv", "trace"):
            with open(self.path("whole." + kind), "rb") as a, open(self.path("part." + kind), "rb") as b:
                self.assertEqual(a.read(), b.read(), kind)
        self.assertFalse(os.path.exists(self.path("part.csv.partial")))
        self.assertIn("expected " + self.path("part.csv.partial") + ", found none",
                      self.refused(*parts, "--resume"))

    def test_refusals(self):
        text = self.text("code.txt", 200)
        self.assertIn("profile: expected --text FILE or --chat LOG", self.refused("profile", MODEL, "-o", "x"))
        self.assertIn('--domain: expected 1 to 64 letters, digits and . _ -, found "a b"',
                      self.refused("profile", MODEL, "--text", text, "--domain", "a b", "-o", self.path("x")))
        self.assertIn("do not fit the context of 64. Fix: --context 76",
                      self.refused("profile", MODEL, "--text", text, "--context", "64", "--window", "60",
                                   "--decode-tokens", "16", "-o", self.path("x")))
        self.assertIn("expected less than the context of 64, found 64",
                      self.refused("profile", MODEL, "--text", text, "--context", "64", "--decode-tokens", "64", "-o",
                                   self.path("x")))
        self.assertIn("expected at least one token", self.refused("profile", MODEL, "--text", self.text("empty", 0, "code.txt"),
                                                                  "-o", self.path("x")))
        self.assertFalse(os.path.exists(self.path("x")))


class Shared(ProfileTest):
    """Commands on one census and trace, made once."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.census = os.path.join(cls.shared.name, "n.csv")
        cls.trace = os.path.join(cls.shared.name, "n.trace")
        texts = []
        for name in ("code", "prose"):
            with open(os.path.join(EVAL, name + ".txt"), encoding="utf-8") as file:
                content = file.read()[:2500]
            texts.append(os.path.join(cls.shared.name, name + ".txt"))
            with open(texts[-1], "w", encoding="utf-8") as file:
                file.write(content)
        subprocess.run([BINARY, "profile", MODEL, "--text", *texts, "--window", "200", "--decode-tokens", "12", "-o",
                        cls.census, "--trace", cls.trace], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def test_show(self):
        out = self.tandem("census", "show", self.census)
        self.assertNotIn("\x1b", out)
        counts = read_census(self.census)
        lines = [line for line in out.splitlines() if re.match(r"^ +\d+ .* +\d+\.\d% +\d+\.\d% +\d+\.\d%$", line)]
        self.assertEqual(len(lines), BANKS)
        for bank, line in enumerate(lines):
            total = [sum(column) for column in zip(*(v for k, v in counts.items() if k[2] == bank))]
            total.sort(reverse=True)
            expected = [f"{100 * sum(total[:n]) / sum(total):.1f}%" for n in (3, 6, 13)]
            self.assertEqual(line.split()[-3:], expected)
        detail = self.tandem("census", "show", self.census, "--layer", "3", "--domain", "code")
        total = [a + b for a, b in zip(counts["code", "prefill", 3], counts["code", "decode", 3])]
        best = max(range(EXPERTS), key=lambda e: (total[e], -e))
        self.assertRegex(detail, rf"(?m)^ +{best} +{100 * total[best] / sum(total):.2f}% ")
        self.assertIn('--domain: expected a domain of the census (code, prose), found "chat"',
                      self.refused("census", "show", self.census, "--domain", "chat"))
        self.assertIn("--layer: expected 0 to 8, found 9", self.refused("census", "show", self.census, "--layer", "9"))

    def on_terminal(self, **variables):
        pid, fd = pty.fork()
        if pid == 0:
            time.sleep(0.1)  # the size is set
            os.execve(BINARY, [BINARY, "census", "show", self.census], {"HOME": "/", "TERM": "xterm-256color", **variables})
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 70, 0, 0))
        data = b""
        while True:
            try:
                part = os.read(fd, 65536)
            except OSError:
                break
            if not part:
                break
            data += part
        os.close(fd)
        os.waitpid(pid, 0)
        return data.decode()

    def test_show_on_a_terminal(self):
        self.assertIn("\x1b[48;5;", self.on_terminal())
        self.assertIn("\x1b[48;2;", self.on_terminal(COLORTERM="truecolor"))
        self.assertNotIn("\x1b", self.on_terminal(NO_COLOR="1"))
        widths = [len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in self.on_terminal().split("\r\n")
                  if re.match(r" +\d+ ", line)]
        self.assertEqual(len(widths), BANKS)
        self.assertLess(max(widths), 70)

    def test_merge(self):
        self.tandem("census", "merge", self.census + ":0.5", self.census, "-o", self.path("m.csv"))
        one, merged = read_census(self.census), read_census(self.path("m.csv"))
        self.assertEqual(merged, {key: [3 * n for n in values] for key, values in one.items()})  # 1 : 2
        self.tandem("census", "merge", self.census, "-o", self.path("same.csv"))
        with open(self.census, "rb") as a, open(self.path("same.csv"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        for weight in ("-1", "x", "0.0001", ""):
            self.assertIn("expected a weight from 0 to 1000000 with at most three decimals",
                          self.refused("census", "merge", self.census + ":" + weight, "-o", self.path("w.csv")))
        self.assertIn("expected a weight above 0, found none",
                      self.refused("census", "merge", self.census + ":0", "-o", self.path("w.csv")))
        with open(self.census, encoding="utf-8") as file:
            lines = file.read().replace("used,6", "used,5")
        with open(self.path("bad.csv"), "w", encoding="utf-8") as file:
            file.write(lines)
        self.assertRegex(self.refused("census", "merge", self.census, self.path("bad.csv"), "-o", self.path("w.csv")),
                         r"bad\.csv:12: expected \d+ routes \(\d+ rows, 5 each\), found \d+")

    def test_diff(self):
        out = self.tandem("census", "diff", self.census + ":code", self.census + ":prose")
        counts = read_census(self.census)
        for bank in range(BANKS):
            shares = []
            for domain in ("code", "prose"):
                total = [a + b for a, b in zip(counts[domain, "prefill", bank], counts[domain, "decode", bank])]
                shares.append([n / sum(total) for n in total])
            away = sum(abs(a - b) for a, b in zip(*shares)) / 2
            hot = [set(sorted(range(EXPERTS), key=lambda e: (-s[e], e))[:6]) for s in shares]
            self.assertRegex(out, rf"(?m)^ +{bank} .*  +{100 * len(hot[0] & hot[1]) / 6:.1f}%  +\S+  +{100 * away:.1f}%$")
        self.assertRegex(self.tandem("census", "diff", self.census, self.census),
                         r"(?m)^mean 100\.0%  100\.0%  100\.0%  +0\.0%$")
        self.assertIn('expected a domain of the census (code, prose), found "x"',
                      self.refused("census", "diff", self.census, self.census + ":x"))
        self.assertIn("unknown command shwo; did you mean show? (see tandem census --help)",
                      self.refused("census", "shwo", self.census))
        self.assertIn("unknown flag --lyer; did you mean --layer? (see tandem census show --help)",
                      self.refused("census", "show", self.census, "--lyer", "1"))
        self.assertRegex(self.tandem("census"), r"(?m)^ +merge +Add counts up")

    def test_replay_without_moves(self):
        out = self.tandem("replay", self.trace, "--mode", "off", "--slots", "0,50,288", "--census", self.census,
                          "--curve", "16", "--csv", self.path("r.csv"))
        counts, rounds = read_census(self.census), read_trace(self.trace)
        share = {}
        for bank in range(BANKS):
            total = [sum(column) for column in zip(*(v for k, v in counts.items() if k[2] == bank))]
            for e in range(EXPERTS):
                share[bank, e] = total[e] / sum(total)
        card = set(sorted(share, key=lambda k: (-share[k], k))[:50])
        hits = sum((bank, e) in card for _, _, blocks in rounds for bank, _, ids in blocks for e in ids)
        routes = sum(len(ids) for _, _, blocks in rounds for _, _, ids in blocks)
        misses = sum(len({(b, e) for b, _, ids in blocks for e in ids} - card) for _, _, blocks in rounds)
        with open(self.path("r.csv"), encoding="utf-8") as file:
            table = [line.rstrip("\n").split(",") for line in file]
        row = next(dict(zip(table[0], line)) for line in table if line[0] == "off 50")
        self.assertEqual((int(row["hits"]), int(row["routes"]), int(row["misses"]), int(row["rounds"]), row["swaps"]),
                         (hits, routes, misses, len(rounds), "0"))
        points = [dict(zip(table[0], line)) for line in table if line[0] == "off 50"][1:]
        self.assertEqual(len(points), -(-len(rounds) // 16))
        self.assertEqual(sum(int(p["hits"]) for p in points), hits)
        self.assertRegex(out, r"(?m)^off 0 +0 +0\.0%")
        self.assertRegex(out, r"(?m)^off 288 +288 +100\.0% +100\.0%")
        self.assertRegex(out, rf"(?m)^off 50 +50 +{100 * hits / routes:.1f}%")

    def test_replay_of_several_traces(self):
        out = self.tandem("replay", self.trace, self.trace, "--expert-size", "100KiB", "--residency", "40%")
        self.assertIn(f"{2 * len(read_trace(self.trace))} rounds", out)
        self.assertEqual([line.split()[:3] for line in out.splitlines()[2:]],
                         [[mode, "40%", "115"] for mode in ("off", "lru", "lfu", "swaps")])
        self.assertIn("copied/round", out)
        for flags, message in {
                ("--mode", "fifo"): '--mode: expected off, lru, lfu or swaps, found "fifo"',
                ("--residency", "40"): '--residency: expected a share like 40%, found "40"',
                ("--residency", "140%"): '--residency: expected 0% to 100%, found "140"',
                ("--slots", "289"): '--slots: expected a number from 0 to 288, found "289"',
                ("--margin", "0.5"): "--margin: expected 1 or more, found 0.5",
                ("--half-life", "0"): "--half-life: expected more than 0 rows",
                ("--census", self.census + ":x"): 'expected a domain of the census (code, prose), found "x"',
        }.items():
            self.assertIn(message, self.refused("replay", self.trace, *flags))
        self.assertIn("expected a trace", self.refused("replay", self.census))

    def test_replay_of_plans(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs")
        out = self.tandem("replay", self.trace, "--model", MODEL, "--policy", os.path.join(root, "policies", "demo.yaml"))
        self.assertRegex(out, r"(?m)^demo +115 ")
        with open(self.path("small.yaml"), "w", encoding="utf-8") as file:
            file.write("context: 2048\nmemory:\n  vram_reserve: 0\nadapt:\n  mode: off\n")
        out = self.tandem("replay", self.trace, "--model", MODEL, "--policy", self.path("small.yaml"), "--vram",
                          "56MiB,68MiB", "--hardware", os.path.join(root, "hardware", "rtx3090-64gb.yaml"), "--csv",
                          self.path("p.csv"))
        self.assertRegex(out, r"(?m)^small 68\.0 MiB +288 +100\.0% .* 0\.00 +0\.00 +0 B +\d+\.\d{3} ms$")
        with open(self.path("p.csv"), encoding="utf-8") as file:
            table = [line.rstrip("\n").split(",") for line in file]
        rows = [dict(zip(table[0], line)) for line in table[1:]]
        self.assertEqual([row["case"] for row in rows], ["small 56.0 MiB", "small 68.0 MiB"])
        self.assertGreater(float(rows[0]["decode_round_seconds"]), float(rows[1]["decode_round_seconds"]))
        self.assertIn("expected --model FILE with --policy and --vram", self.refused("replay", self.trace, "--vram", "1GiB"))

    def test_report(self):
        self.tandem("census", "show", self.census, "--report", self.path("r.html"))
        with open(self.path("r.html"), encoding="utf-8") as file:
            page = file.read()
        data = json.loads(re.search(r"(?m)^const census = (.*);$", page).group(1))
        counts = read_census(self.census)
        for domain in data["domains"]:
            for phase in ("prefill", "decode"):
                for bank, values in enumerate(domain[phase]["routes"]):
                    self.assertEqual(values, counts[domain["name"], phase, bank])
        links = set(re.findall(r"https?://[^\"' ]+", page))
        self.assertEqual(links, {"http://www.w3.org/2000/svg"})  # a name, nothing that is fetched
        self.assertNotRegex(page, r"(?i)<(link|img|iframe)|src=|@import|url\(")
        if shutil.which("chromium") is None:
            self.skipTest("no chromium: the page was not rendered")
        dom = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + self.path("chromium"),
             "--virtual-time-budget=3000", "--dump-dom", "file://" + self.path("r.html")],
            capture_output=True, timeout=120, encoding="utf-8", check=False).stdout
        body = dom[:dom.index("<script>")]
        self.assertNotIn("NaN", body)
        drawn = {name: re.search(rf'<svg id="{name}".*?</svg>', body, re.S).group(0) for name in ("coverage", "hits")}
        self.assertEqual(drawn["coverage"].count("<path"), BANKS + 2)  # every bank, the mean, even use
        self.assertEqual(drawn["hits"].count("<path"), 4)  # two domains, each by all and by itself
        self.assertEqual(body.count("<b>100.0 %</b>"), 2)  # the diagonal of the matrix
        self.assertRegex(body, r'<canvas id="map"[^>]*height="\d+"')
        self.assertRegex(body, r"<td>code</td><td>prefill</td><td>\d+</td><td>\d+\.\d %</td>")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
