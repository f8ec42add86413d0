#!/usr/bin/env python3
"""Runs tandem.sh, test.sh and .ci/run's helpers in a copy of their own, with stand-ins for cmake, ninja, ctest and the
package tools, and checks what a person or another program would see: exit status, stdout, stderr, calls made."""

import os
import pathlib
import pty
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Each stand-in appends its name and arguments to $CALLS. They eat stdin, as careless tools do.
STAND_INS = {
    # Makes the binary that ./tandem.sh starts: it shows its arguments, directory and stdin.
    "cmake": 'mkdir -p "build/release/bin" && cp "$BINARY" build/release/bin/tandem; [ ! -e "$CALLS.cmake_fails" ]',
    "ninja": 'if [ -e "$CALLS.slow" ]; then trap "sleep 0.3; echo stopping; echo cleaned >>$CALLS; exit 2" INT; touch "$CALLS.started"; '
             "i=0; while [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; fi\n"
             'if [ -e "$CALLS.ninja_fails" ]; then i=0; while [ $i -lt 60 ]; do echo "error line $i"; i=$((i+1)); done; '
             'exit 1; fi\n'
             'if [ -e "$CALLS.built" ]; then echo "ninja: no work to do."; exit 0; fi\n'
             'i=1; while [ $i -le 40 ]; do echo "[$i/40] Building part_$i.cpp"; i=$((i+1)); done; touch "$CALLS.built"',
    "ctest": 'echo "Start 1"; cat "$CALLS.ctest"; echo "Total Test time"; [ ! -e "$CALLS.ctest_fails" ]',
    "apt-get": '[ ! -e "$CALLS.apt_fails" ] && case "$*" in *install*) touch "$CALLS.installed";; esac',
    "sudo": 'if [ ! -e "$CALLS.sudo" ]; then exit 1; fi; shift; "$@"',
    "shellcheck": ":",
    "git": "exit 128",  # as in a tree that is no clone
    # libedit-dev is the package that may be missing; "deinstall" is what dpkg keeps of a removed one.
    "dpkg-query": 'shift 3; for p in "$@"; do if [ "$p" = libedit-dev ] && [ ! -e "$CALLS.installed" ]; then '
                  'echo "config-files $p"; else echo "installed $p"; fi; done',
}
BINARY = '#!/bin/sh\necho "started in $PWD"\nfor a in "$@"; do echo "<$a>"; done\n[ -t 0 ] || cat\nexit 7\n'
CLOSING = "83% tests passed, 1 tests failed out of 6"


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        base = pathlib.Path(folder.name).resolve()
        self.checkout = base / "a check out"
        self.elsewhere = base / "else where"
        self.calls_file = base / "calls"
        tools = base / "tools"
        for made in (self.checkout, self.elsewhere, tools):
            made.mkdir()
        shutil.copytree(ROOT / ".ci", self.checkout / ".ci")
        for name in ("tandem.sh", "test.sh", "CMakePresets.json"):
            shutil.copy(ROOT / name, self.checkout / name)
        (base / "binary").write_text(BINARY)
        (base / "binary").chmod(0o755)
        for name, body in STAND_INS.items():
            (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$CALLS"\n[ -t 0 ] || cat >/dev/null\n{body}\n')
            (tools / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(self.calls_file),
                            "BINARY": str(base / "binary"), "TERM": "xterm"}
        self.flag("installed")
        self.flag("ctest", f"{CLOSING}\n")

    def flag(self, name, text=""):
        pathlib.Path(f"{self.calls_file}.{name}").write_text(text)

    def unflag(self, name):
        pathlib.Path(f"{self.calls_file}.{name}").unlink()

    def calls(self, tool):
        """The calls of one tool since the last time anyone asked for any."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [line for line in lines if line.split(" ")[0] == tool]

    def forget_calls(self):
        self.calls_file.unlink(missing_ok=True)

    def run_script(self, name, *arguments, cwd=None, stdin=""):
        return subprocess.run([str(self.checkout / name), *arguments], cwd=cwd or self.elsewhere, input=stdin,
                              env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def test_program_gets_arguments_directory_and_stdin(self):
        done = self.run_script("tandem.sh", "run", "my model.gguf", "-p", "", stdin="typed\n")
        self.assertEqual(done.stdout, f"started in {self.elsewhere}\n<run>\n<my model.gguf>\n<-p>\n<>\ntyped\n")
        self.assertEqual(done.returncode, 7)
        self.assertEqual(self.calls("ninja")[0].split()[-1], "tandem")

    def test_without_arguments_it_chats_with_the_model_of_the_checkout(self):
        done = self.run_script("tandem.sh")
        self.assertIn(f"<chat>\n<{self.checkout}/models/flash-next-nano-q4.gguf>\n", done.stdout)

    def test_started_through_a_link(self):
        (self.elsewhere / "tandem").symlink_to(self.checkout / "tandem.sh")
        done = subprocess.run([str(self.elsewhere / "tandem"), "x"], cwd="/", env=self.environment, input="",
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.stdout, "started in /\n<x>\n")

    def test_progress_is_short_lines_without_a_terminal(self):
        done = self.run_script("tandem.sh", "x")
        progress = [line for line in done.stderr.splitlines() if "%" in line]
        self.assertEqual(len(progress), 11)
        self.assertIn("100% (40 of 40 steps", progress[-1])
        self.assertNotIn("\r", done.stderr)
        self.assertIn("[40/40] Building part_40.cpp", (self.checkout / "build/build.log").read_text())

    def test_progress_is_a_bar_on_a_terminal(self):
        leader, follower = pty.openpty()
        done = subprocess.run([str(self.checkout / "tandem.sh"), "x"], cwd=self.elsewhere, env=self.environment,
                              input=b"", stdout=subprocess.PIPE, stderr=follower, timeout=60, check=False)
        os.close(follower)
        shown = b""
        while chunk := self.read_terminal(leader):
            shown += chunk
        os.close(leader)
        self.assertEqual(done.stdout, f"started in {self.elsewhere}\n<x>\n".encode())
        self.assertIn(b"\rbuilding release [############             ]  50%  20/40", shown)
        self.assertIn(b"[#########################] 100%  40/40", shown)

    @staticmethod
    def read_terminal(descriptor):
        try:
            return os.read(descriptor, 65536)
        except OSError:  # the other end is closed and everything has been read
            return b""

    def test_second_run_configures_nothing_asks_dpkg_nothing_and_is_silent(self):
        self.run_script("tandem.sh", "x")
        log = (self.checkout / "build/build.log").read_text()
        self.forget_calls()
        before = os.times()
        done = self.run_script("tandem.sh", "x")
        after = os.times()
        # Processor time, so that a busy machine does not fail this.
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        self.assertLess(spent, 0.5)
        self.assertEqual(self.calls("cmake") + self.calls("dpkg-query") + self.calls("apt-get"), [])
        self.assertEqual(len(self.calls("ninja")), 1)
        self.assertEqual(done.stderr, "")
        self.assertEqual((self.checkout / "build/build.log").read_text(), log)

    def test_configures_again_when_presets_change_or_the_checkout_moved(self):
        self.run_script("tandem.sh", "x")
        self.forget_calls()
        later = time.time() + 5
        os.utime(self.checkout / "CMakePresets.json", (later, later))
        self.run_script("tandem.sh", "x")
        self.assertIn("--preset release --fresh", self.calls("cmake")[0])
        os.utime(self.checkout / "CMakePresets.json", (1, 1))
        self.forget_calls()
        moved = self.checkout.with_name("moved")
        self.checkout.rename(moved)
        self.checkout = moved
        self.run_script("tandem.sh", "x")
        self.assertEqual(len(self.calls("cmake")), 1)

    def test_a_failed_configuration_shows_why_and_is_tried_again(self):
        self.flag("cmake_fails")
        done = self.run_script("tandem.sh", "x")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(self.calls("ninja"), [])
        self.unflag("cmake_fails")
        self.assertEqual(self.run_script("tandem.sh", "x").returncode, 7)
        self.assertEqual(len(self.calls("cmake")), 2)

    def test_tests_stay_configured_when_the_program_is_started_next(self):
        self.run_script("tandem.sh", "x")
        self.assertIn("-DTANDEM_TESTS=OFF", self.calls("cmake")[-1])
        self.run_script("test.sh")
        self.assertIn("-DTANDEM_TESTS=ON", self.calls("cmake")[-1])
        self.forget_calls()
        self.run_script("tandem.sh", "x")
        self.run_script("test.sh")
        self.assertEqual(self.calls("cmake"), [])

    def test_a_failed_build_shows_the_last_40_lines_and_starts_nothing(self):
        self.flag("ninja_fails")
        done = self.run_script("tandem.sh", "x")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertNotIn("error line 19\n", done.stderr)
        self.assertIn("error line 20\n", done.stderr)
        self.assertIn("error line 59\n", done.stderr)
        self.assertIn("build/build.log", done.stderr)

    def test_ctrl_c_lets_ninja_clean_up_and_starts_nothing(self):
        self.flag("slow")
        running = subprocess.Popen([str(self.checkout / "tandem.sh"), "x"], env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
        for _ in range(200):
            if pathlib.Path(f"{self.calls_file}.started").exists():
                break
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=30)
        self.assertEqual((running.returncode, out), (130, ""))
        self.assertIn("interrupted", err)
        self.assertEqual(self.calls("cleaned"), ["cleaned"])
        self.unflag("slow")
        self.assertEqual(self.run_script("tandem.sh", "x").returncode, 7)

    def test_missing_packages_without_root_are_one_line_to_run(self):
        if os.geteuid() == 0:
            self.flag("apt_fails")  # root is who runs the tests in CI; apt that fails ends in the same place
        self.unflag("installed")
        done = self.run_script("tandem.sh", "x")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr.splitlines()[-1], "sudo apt-get install -y libedit-dev")
        self.assertEqual(self.calls("cmake"), [])

    def test_missing_packages_are_installed_by_root_or_sudo(self):
        self.unflag("installed")
        self.flag("sudo")
        done = self.run_script("tandem.sh", "x")
        self.assertEqual(done.returncode, 7)
        installs = [call for call in self.calls("apt-get") if " install " in call]
        self.assertEqual(len(installs), 1)
        self.assertTrue(installs[0].endswith(" libedit-dev"), installs)
        self.assertIn("libedit-dev", done.stderr)

    def test_tests_end_with_the_closing_line_and_the_status_of_ctest(self):
        done = self.run_script("test.sh", "-R", "gguf")
        self.assertEqual(done.stdout.splitlines()[-1], CLOSING)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(self.calls("ctest")[0].endswith(" -R gguf"), self.calls("ctest"))
        self.assertIn("--output-on-failure", self.calls("ctest")[0])
        self.flag("ctest_fails")
        done = self.run_script("test.sh")
        self.assertEqual(done.stdout.splitlines()[-1], CLOSING)
        self.assertNotEqual(done.returncode, 0)

    def test_a_run_without_tests_says_so(self):
        self.flag("ctest", "No tests were found!!!\n")
        self.flag("ctest_fails")
        done = self.run_script("test.sh")
        self.assertEqual(done.stdout.splitlines()[-1], "no test ran")
        self.assertNotEqual(done.returncode, 0)

    def run_ci(self, full="1", **status):
        """.ci/run, with its long steps unless full is empty, with source checks that end with the given statuses (0 when not given), threads tests present."""
        (self.checkout / "tests").mkdir(exist_ok=True)
        (self.checkout / "tests/CMakeLists.txt").write_text("tandem_test(a SOURCES a.cpp LABELS threads)\n")
        for name in ("check_layers.py", "check_docs.py"):
            (self.checkout / "tests" / name).write_text(f"raise SystemExit({status.get(name[:-3], 0)})\n")
        checker = self.checkout / "tests/check_format.sh"
        checker.write_text(f"#!/bin/sh\nexit {status.get('check_format', 0)}\n")
        checker.chmod(0o755)
        self.environment["TANDEM_CI_FULL"] = full
        return self.run_script(".ci/run")

    def test_ci_runs_every_step_and_ends_with_the_closing_line(self):
        self.flag("ctest", "100% tests passed, 0 tests failed out of 6\n")
        done = self.run_ci(check_format=77)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 6")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {line[:28].strip(): line[28:].split()[0] for line in lines[-9:-1]}
        self.assertEqual(verdicts, {
            "test.sh": "passed", "layers": "passed", "docs": "passed", "format": "skipped", "shell scripts": "passed",
            "clang-tidy on changes": "skipped", "ASan and UBSan": "passed", "TSan on threads": "passed"})
        presets = [call.split()[2] for call in self.calls("cmake")]
        self.assertEqual(presets, ["release", "debug", "tsan"])
        self.assertIn("-L threads", self.calls("ctest")[-1])

    def test_ci_leaves_the_long_steps_out(self):
        done = self.run_ci(full="")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([call.split()[2] for call in self.calls("cmake")], ["release"])
        self.assertNotIn("clang-tidy", done.stdout)

    def test_ci_fails_when_any_step_fails(self):
        for failing in ("check_layers", "check_docs", "check_format"):
            with self.subTest(failing):
                done = self.run_ci(**{failing: 1})
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stdout.count("FAILED"), 1)
                self.assertEqual(done.stdout.splitlines()[-1], CLOSING)
        self.flag("ctest_fails")
        done = self.run_ci()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("FAILED"), 3)  # the tests and both sanitizers

    def test_what_ci_runs_by_default_fails_when_any_step_fails(self):
        for failing in ("check_layers", "check_docs", "check_format"):
            with self.subTest(failing):
                done = self.run_ci(full="", **{failing: 1})
                self.assertEqual((done.returncode, done.stdout.count("FAILED")), (1, 1))
        self.flag("ctest_fails")
        done = self.run_ci(full="")
        self.assertEqual((done.returncode, done.stdout.count("FAILED")), (1, 1))

    def test_every_package_group_is_known(self):
        lines = [line.split() for line in (ROOT / ".ci/packages.txt").read_text().splitlines()
                 if line and not line.startswith("#")]
        self.assertTrue(all(len(line) == 2 and line[0] in ("build", "test", "ci") for line in lines), lines)
        self.assertEqual(len({package for _, package in lines}), len(lines))


if __name__ == "__main__":
    unittest.main()
