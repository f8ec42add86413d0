#!/usr/bin/env python3
"""`tandem doctor` from outside: exit codes, report, the profile it writes: doctor_test.py BINARY [unittest arguments].

The program loads what it wrote before it ends with code 0; here the file is read once more by a reader of our own.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BINARY = sys.argv[1]


def read_profile(path):
    """Nested keys and plain values of the YAML that the program writes (two spaces a level, no lists)."""
    root = {}
    stack = [(-1, root)]
    with open(path, encoding="utf-8") as stream:
        for line in stream.read().splitlines():
            if line.startswith("#"):
                continue
            match = re.fullmatch(r"( *)([\w]+):(?: (.*))?", line)
            assert match, line
            depth = len(match.group(1))
            while stack[-1][0] >= depth:
                stack.pop()
            if match.group(3) is None:
                stack[-1][1][match.group(2)] = {}
                stack.append((depth, stack[-1][1][match.group(2)]))
            else:
                stack[-1][1][match.group(2)] = match.group(3)
    return root


def size(text):
    number, unit = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)", text).groups()
    return int(number) << {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]


# What a machine without a usable card says, with CUDA in the build and without.
NO_GPU = ("this build has no GPU support", "no NVIDIA driver was found", "no NVIDIA card was found")


class DoctorTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def doctor(self, *arguments, home=None, **options):
        environment = {"PATH": os.environ["PATH"], "HOME": home or self.folder}
        result = subprocess.run([BINARY, "doctor", "--quick", *arguments], capture_output=True, timeout=120,
                                env=environment, encoding="utf-8", check=False, cwd=self.folder, **options)
        return result.returncode, result.stdout, result.stderr

    def test_profile_and_json_agree(self):
        out = os.path.join(self.folder, "machine.yaml")
        code, text, errors = self.doctor("--json", "--out", out, "--name", "yes: a name")
        self.assertEqual((code, errors), (0, ""))
        report = json.loads(text)
        profile = read_profile(out)
        self.assertEqual(report["profile"], out)
        self.assertEqual(report["name"], "yes: a name")
        self.assertEqual(profile["name"], '"yes: a name"')
        self.assertRegex(profile["source"], r"^measured \d{4}-\d\d-\d\d by tandem doctor --quick$")
        for key in ("performance_cores", "efficiency_cores", "threads", "l3_groups", "numa_nodes"):
            self.assertEqual(int(profile["cpu"][key]), report["cpu"][key], key)
        self.assertEqual(profile["cpu"]["isa"], report["cpu"]["isa"])
        self.assertEqual(report["cpu"]["threads"], len(os.sched_getaffinity(0)))
        for key in ("total", "available"):
            self.assertEqual(size(profile["ram"][key]), report["ram"][key], key)
        self.assertEqual({int(k): float(v) for k, v in profile["ram"]["read_gbps"].items()},
                         {int(k): v for k, v in report["ram"]["read_gbps"].items()})
        self.assertIn("1", report["ram"]["read_gbps"])
        lockable = report["ram"]["lockable"]
        self.assertEqual(profile["ram"]["lockable"] if lockable is None else size(profile["ram"]["lockable"]),
                         "unlimited" if lockable is None else lockable)
        self.assertEqual(float(profile["disk"]["random_read_mbps"]), report["disk"]["random_read_mbps"])
        self.assertEqual(float(profile["disk"]["large_read_gbps"]), report["disk"]["large_read_gbps"])
        if report["gpu"] is None:
            self.assertNotIn("gpu", profile)
            self.assertIn(report["gpu_missing"], NO_GPU)
        else:
            self.assertEqual(profile["gpu"]["model"], report["gpu"]["model"])
            self.assertEqual(report["gpu_missing"], "")
        self.assertEqual(sorted(os.listdir(self.folder)), ["machine.yaml"])  # neither probe nor temporary file

    def test_report(self):
        code, text, errors = self.doctor("--name", "box")
        self.assertEqual((code, errors), (0, ""))
        self.assertTrue(text.startswith("box\n"), text)
        for part in ("\n  cores ", "\n  RAM ", "\n  RAM reads ", "\n  disk ", "GB/s by number of workers", "\n  GPU "):
            self.assertIn(part, text)
        if "no GPU: " in text:
            self.assertIn(text.split("no GPU: ")[1].split("\n")[0], NO_GPU)
        self.assertEqual(text.count("cost: "), text.count("cure: "))
        state = os.path.join(self.folder, ".local/state/tandem/hardware.yaml")
        self.assertTrue(text.endswith(f"\nWritten to {state}\n"), text)
        self.assertEqual(read_profile(state)["name"], "box")

    def test_other_disk_folder(self):
        other = os.path.join(self.folder, "models")
        os.mkdir(other)
        code, text, _ = self.doctor("--json", "--disk-dir", other)
        self.assertEqual(code, 0)
        self.assertEqual(json.loads(text)["disk"]["folder"], other)
        self.assertEqual(os.listdir(other), [])

    def test_affinity_counts(self):
        one = min(os.sched_getaffinity(0))
        code, text, _ = self.doctor("--json", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(code, 0)
        report = json.loads(text)
        self.assertEqual(report["cpu"]["threads"], 1)
        self.assertEqual(list(report["ram"]["read_gbps"]), ["1"])
        if len(os.sched_getaffinity(0)) > 1:
            self.assertIn("affinity", [finding["id"] for finding in report["findings"]])

    def test_refusals(self):
        gone = os.path.join(self.folder, "none")
        cases = [(("--disk-dir", gone), f"--disk-dir {gone}: expected a folder, found none"),
                 (("--out", gone + "/x.yaml"), f"--out {gone}/x.yaml: cannot create the file: No such file or directory"),
                 (("--jsn",), "unknown flag --jsn; did you mean --json? (see tandem doctor --help)"),
                 (("model.gguf",), "unknown argument model.gguf (see tandem doctor --help)")]
        for arguments, message in cases:
            code, out, errors = self.doctor(*arguments)
            self.assertEqual((code, out, errors), (2, "", f"tandem: error: {message}\n"))

    def test_a_failed_run_leaves_the_old_profile(self):
        out = os.path.join(self.folder, "machine.yaml")
        with open(out, "w", encoding="utf-8") as stream:
            stream.write("mine")
        self.assertEqual(self.doctor("--out", out, "--disk-dir", os.path.join(self.folder, "none"))[0], 2)
        with open(out, encoding="utf-8") as stream:
            self.assertEqual(stream.read(), "mine")
        self.assertEqual(os.listdir(self.folder), ["machine.yaml"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
