#!/usr/bin/env python3
"""Drives `tandem chat` on a pseudo-terminal as a person would: chat_pty_test.py BINARY MODEL [unittest arguments].

What is expected comes from outside the program: the texts of the model's golden data (greedy), the template's token
counts, and the files that the chat leaves behind.
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
import unittest

BINARY, MODEL = sys.argv[1:3]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
# The small model repeats this without end, so an answer to it can always be interrupted.
ENDLESS = "Repeat the following text exactly: " + " ".join(["a b c d e f g"] * 60)


class Terminal:
    """A chat on a pseudo-terminal. `screen` is everything printed so far, with the escape sequences taken out."""

    def __init__(self, home, *flags, env=None, size=(24, 100)):
        variables = {"PATH": os.environ["PATH"], "TERM": "xterm", "HOME": home, "XDG_STATE_HOME": home, "LANG": "C.UTF-8"}
        # In a sanitizer build: libedit never frees the names of added editor functions, which it copies with wcsdup.
        suppressions = os.path.join(home, "leaks.txt")
        with open(suppressions, "w", encoding="utf-8") as file:
            file.write("leak:wcsdup\n")
        variables["LSAN_OPTIONS"] = f"suppressions={suppressions}:print_suppressions=0"
        variables.update(env or {})
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, "chat", MODEL, *flags], variables)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.raw = ""
        self.seen = 0  # what earlier expectations have used up of `screen`
        self.pending = b""

    @property
    def screen(self):
        return ESCAPES.sub("", self.raw)

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has ended
            return None
        if not data:
            return None
        self.pending += data
        text = self.pending.decode("utf-8", "ignore")
        whole = text.encode("utf-8")
        if self.pending.startswith(whole):
            self.raw += text
            self.pending = self.pending[len(whole):]
        return True

    def expect(self, pattern, seconds=30):
        """Waits for the pattern after what was matched before; returns the match."""
        deadline = time.monotonic() + seconds
        while True:
            match = re.compile(pattern, re.S).search(self.screen, self.seen)
            if match:
                self.seen = match.end()
                return match
            left = deadline - time.monotonic()
            if left <= 0 or self.read(left) is None:
                raise AssertionError(f"expected {pattern!r}, got after the last match:\n{self.screen[self.seen:]!r}")

    def send(self, text):
        os.write(self.fd, text.encode("utf-8") if isinstance(text, str) else text)

    def prompt(self):
        """Waits until the chat asks for a message: libedit has put its prompt on a fresh line."""
        self.expect(r"(?<![^\n\r])> ")

    def say(self, text):
        """Types a line and waits for what it shows, up to the next prompt. Returns it without the echo."""
        self.prompt_text = text
        self.send(text + "\r")
        self.expect(r"\r?\n")
        start = self.seen
        self.prompt()
        return self.screen[start:self.seen - 2].replace("\r", "")

    def end(self):
        """Ctrl-D, and the exit code."""
        self.send("\x04")
        return self.wait()

    def wait(self, seconds=20):
        deadline = time.monotonic() + seconds
        while self.read(0.05) is not None:
            if time.monotonic() > deadline:
                raise AssertionError(f"expected the chat to end, got:\n{self.screen[self.seen:]!r}")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)
            self.pid = 0


class ChatTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = folder.name

    def chat(self, *flags, **options):
        terminal = Terminal(self.home, *flags, **options)
        self.addCleanup(terminal.kill)
        terminal.prompt()
        return terminal

    def saved(self, terminal, name="check"):
        """The conversation as the chat writes it."""
        self.assertIn("saved", terminal.say(f"/save {name}"))
        with open(os.path.join(self.home, "tandem", "chats", name + ".json"), encoding="utf-8") as file:
            return json.load(file)


class Conversation(ChatTest):
    def test_from_greeting_to_end(self):
        t = self.chat("--greedy", "--no-think")
        self.assertRegex(t.screen, r"\[flash-next-nano-q4\.gguf, context 4096, thinking off; /help")
        first = t.say(CAPITAL)
        self.assertRegex(first, r"^The capital of France is Paris\.\n\[9 tokens, [0-9.]+ tok/s"
                                r"(, [0-9.]+ tokens a round, [0-9]+ % of drafts accepted)? \| prompt 20 tokens, ")
        # The prompt of 20 tokens, 9 of the answer, <|im_end|> and a line feed.
        self.assertRegex(first, r"context 31/4096\]\n$")
        second = t.say("And of Slovenia?")
        self.assertIn("The capital of Slovenia is Ljubljana.\n", second)
        # Only what is new is read: less than the first turn and its answer together.
        self.assertLess(int(re.search(r"prompt (\d+) tokens", second)[1]), 31)
        self.assertEqual(t.say("/undo"), '[took back "And of Slovenia?"; 1 turn left]\n')
        self.assertTrue(t.say("/retry").startswith(PARIS + "\n"))
        self.assertEqual(len(self.saved(t)["turns"]), 1)
        # After undo and retry the same question gets the same answer as before.
        again = t.say("And of Slovenia?")
        self.assertEqual(again.split("\n")[0], second.split("\n")[0])
        self.assertEqual(t.end(), 0)

    def test_settings(self):
        t = self.chat("--no-think", "--seed", "5")
        self.assertRegex(t.say("/set"), r"temperature +[0-9.]+ +\(default\)(.|\n)*seed +5 *\n")
        self.assertRegex(t.say("/set temperature 0"), r"^ *temperature +0 *\n$")
        self.assertTrue(t.say(CAPITAL).startswith(PARIS + "\n"))
        self.assertIn("found \"hot\"", t.say("/set temperature hot"))
        self.assertIn("from 0.01 to 100, found -3", t.say("/set temperature -3"))
        self.assertIn("did you mean temperature?", t.say("/set temprature 1"))
        self.assertRegex(t.say("/set temperature"), r"temperature +0 *\n")  # none of these changed it
        self.assertRegex(t.say("/set temperature default"), r"\(default\)")
        self.assertIn("did you mean /stats?", t.say("/stat"))
        self.assertIn("takes no argument", t.say("/undo 3"))
        self.assertIn("ended by max-tokens", [t.say("/set max-tokens 2"), t.say(CAPITAL)][1])
        self.assertEqual(t.end(), 0)

    def test_help_names_every_command(self):
        t = self.chat()
        text = t.say("/help")
        for name in "help new system undo retry set stats save load think quit".split():
            self.assertRegex(text, rf"(?m)^  /{name}\b")
        self.assertIn("presence-penalty", t.say("/help set"))
        t.send("/quit\r")
        self.assertEqual(t.wait(), 0)

    def test_stats(self):
        t = self.chat("--greedy", "--no-think", "--context", "512")
        t.say(CAPITAL)
        text = t.say("/stats")
        self.assertRegex(text, r"a round +[0-9.]+ ms drafting, [0-9.]+ ms pass, [0-9.]+ ms sampling, [0-9]+ rounds")
        self.assertIn("31 of 512 tokens (6 %), 1 turn", text)
        self.assertIn("answers     1: 9 tokens", text)
        self.assertEqual(t.end(), 0)

    def test_draft_vocabulary_of_saved_conversations(self):
        t = self.chat("--greedy", "--no-think")
        answer = t.say(CAPITAL)
        self.assertIn("saved", t.say("/save mine"))
        self.assertEqual(t.end(), 0)
        t = self.chat("--greedy", "--no-think", "--draft-vocab", "200", "--draft-vocab-from", "history", "--drafts", "2")
        self.assertEqual(t.say(CAPITAL).split("\n")[0], answer.split("\n")[0])
        self.assertIn("the draft head chooses among 200 of 4,096 tokens, by their number in 1 saved conversation",
                      t.say("/stats"))
        self.assertEqual(t.end(), 0)

    def test_new_and_system(self):
        t = self.chat("--greedy", "--no-think")
        t.say(CAPITAL)
        t.say("/new")
        self.assertIn("context 31/4096", t.say(CAPITAL))
        t.say("/system You are terse.")
        self.assertEqual(t.say("/system"), "You are terse.\n")
        with_system = t.say("And of Slovenia?")
        self.assertIn("the system message changed; the conversation is read again", with_system)
        saved = self.saved(t)
        self.assertEqual(saved["settings"]["system"], "You are terse.")
        self.assertGreater(saved["prefix"], 5)
        self.assertEqual(saved["turns"][0]["first_token"], saved["prefix"])
        t.say("/system none")
        t.say("/new")
        self.assertIn("context 31/4096", t.say(CAPITAL))
        self.assertEqual(t.end(), 0)

    def test_save_and_load(self):
        t = self.chat("--greedy", "--no-think")
        t.say(CAPITAL)
        before = self.saved(t, "paris")
        second = t.say("And of Slovenia?").split("\n")[0]
        self.assertEqual(t.end(), 0)

        t = self.chat("--greedy", "--no-think")
        loaded = t.say("/load paris")
        self.assertIn("loaded 1 turn, 31 tokens, and the settings that it was saved with", loaded)
        self.assertNotIn("read again", loaded)
        answer = t.say("And of Slovenia?")
        self.assertEqual(answer.split("\n")[0], second)
        self.assertLess(int(re.search(r"prompt (\d+) tokens", answer)[1]), 31)  # the state came with the file
        self.assertEqual(self.saved(t, "more")["tokens"][:31], before["tokens"])
        self.assertIn("more, paris", t.say("/load"))
        self.assertIn("did you mean paris?", t.say("/load parsi"))

        # Without its state the conversation is read again, visibly, and goes on in the same way.
        os.remove(os.path.join(self.home, "tandem", "chats", "paris.state"))
        self.assertIn("read again (31 tokens)", t.say("/load paris"))
        self.assertEqual(t.say("And of Slovenia?").split("\n")[0], second)

        # A damaged file changes nothing.
        with open(os.path.join(self.home, "tandem", "chats", "paris.json"), "w", encoding="utf-8") as file:
            file.write('{"format": "tandem-conversation", "version": 9}')
        self.assertIn("version: expected 1, found 9", t.say("/load paris"))
        self.assertIn("2 turns", t.say("/stats"))
        self.assertEqual(t.end(), 0)


class Interrupts(ChatTest):
    def test_answer_is_stopped_and_stays(self):
        t = self.chat("--greedy", "--no-think")
        t.send(ENDLESS + "\r")
        t.expect(r"g\r?\n")
        t.expect(r"[aA] b c d e f g a b")
        t.send("\x03")
        t.expect(r"\| stopped\]")
        t.prompt()
        saved = self.saved(t)
        answer = saved["turns"][0]["answer"]
        self.assertIn(answer, t.screen.replace("\r", ""))  # what was shown, whole
        self.assertTrue(answer.lower().startswith("a b c d e f g a b"))
        self.assertIn("1 turn,", t.say("/stats"))
        follow = t.say(CAPITAL)
        self.assertIn("Paris", follow)
        self.assertIn("2 turns", t.say("/stats"))
        # The stopped turn was closed like any other: its tokens end the same way as those of a finished one.
        tokens = self.saved(t, "after")
        second = tokens["turns"][1]["first_token"]
        self.assertEqual(tokens["tokens"][second - 2:second], tokens["tokens"][-2:])
        self.assertEqual(t.end(), 0)

    def test_keys_during_an_answer_wait(self):
        t = self.chat("--greedy", "--no-think")
        t.send("Tell me a long story about a dragon.\r")
        t.expect(r"\n\w+ \w+")
        t.send(CAPITAL)  # no Enter
        t.expect(r"context \d+/4096\]\r?\n")
        self.assertNotIn("Fra", t.screen[:t.seen])
        t.expect(r"> What is the capital of France\?")
        self.assertTrue(t.say("").startswith(PARIS + "\n"))
        self.assertEqual(t.end(), 0)

    def test_while_thinking(self):
        t = self.chat("--greedy", "--think")
        t.say("/set max-tokens 3")
        t.say("What is 27 + 45?")
        saved = self.saved(t)
        self.assertEqual(saved["turns"][0]["answer"], "")
        self.assertTrue(saved["turns"][0]["thinking"].startswith("27"))
        t.say("/set max-tokens default")
        self.assertIn("Paris", t.say(CAPITAL))
        self.assertEqual(t.end(), 0)

    def test_at_the_prompt(self):
        t = self.chat("--greedy", "--no-think")
        t.send("What is the capital of Ita")
        t.expect("Ita")
        t.send("\x03")
        t.prompt()
        self.assertTrue(t.say(CAPITAL).startswith(PARIS))
        self.assertEqual(self.saved(t)["turns"][0]["user"], CAPITAL)
        t.send("\x03")
        t.expect(r"\[Ctrl-D or /quit leaves the chat\]")
        t.prompt()
        t.send("one \\\r")
        t.expect(r"\. ")
        t.send("two\x03")
        t.prompt()
        self.assertEqual(len(self.saved(t)["turns"]), 1)  # a message of several lines goes as a whole
        self.assertEqual(t.end(), 0)


class Input(ChatTest):
    def last_message(self, terminal):
        return self.saved(terminal)["turns"][-1]["user"]

    def test_several_lines(self):
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        t.send("first\\\r")
        t.expect(r"\. ")
        t.say("second")
        self.assertEqual(self.last_message(t), "first\nsecond")
        t.send('"""\r')
        t.expect(r"\. ")
        t.send("in a\r")
        t.expect(r"\. ")
        t.send("\r")
        t.expect(r"\. ")
        t.say('block"""')
        self.assertEqual(self.last_message(t), "in a\n\nblock")
        t.say('"""on one line"""')
        self.assertEqual(self.last_message(t), "on one line")
        t.send("alt\x1b\r")
        t.say("enter")
        self.assertEqual(self.last_message(t), "alt\nenter")
        self.assertEqual(t.end(), 0)

    def test_paste(self):
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        self.assertIn("\x1b[?2004h", t.raw)
        t.send("say: \x1b[200~line one\rline two\n\tthree \xe9\u20ac\n\x1b[201~")
        t.expect("three")
        time.sleep(0.2)  # a paste alone sends nothing
        self.assertNotIn("tokens,", t.screen[t.seen:])
        t.say("")
        self.assertEqual(self.last_message(t), "say: line one\nline two\n\tthree \xe9\u20ac")
        self.assertEqual(t.end(), 0)
        self.assertGreaterEqual(t.raw.count("\x1b[?2004l"), 2)  # switched off while the chat does not read

    def test_editing_and_utf8(self):
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        t.send("gr\u00fc\u00dfe \u4f60\u597dX\x7f!\x1b[D\x1b[D\x1b[D\x7f_\x01>")
        t.say("")
        self.assertEqual(self.last_message(t), ">gr\u00fc\u00dfe_\u4f60\u597d!")
        self.assertEqual(t.end(), 0)

    def test_history(self):
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        t.say("remember me")
        t.end()
        path = os.path.join(self.home, "tandem", "history")
        self.assertEqual(os.stat(path).st_mode & 0o077, 0)  # nobody else reads it
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        t.send("\x1b[A")
        t.expect("remember me")
        t.say("")
        self.assertEqual(self.last_message(t), "remember me")
        t.end()
        os.remove(path)
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2", "--no-history")
        t.say("forget me")
        t.end()
        self.assertFalse(os.path.exists(path))

    def test_history_that_cannot_be_written(self):
        t = self.chat("--greedy", "--no-think", env={"XDG_STATE_HOME": "/proc/nowhere"})
        self.assertTrue(t.say(CAPITAL).startswith(PARIS))
        self.assertIn("error: ", t.say("/save name"))
        self.assertEqual(t.end(), 0)

    def test_a_message_that_begins_with_a_slash(self):
        t = self.chat("--greedy", "--no-think", "--max-tokens", "2")
        t.say("//etc is a folder")
        self.assertEqual(self.last_message(t), "/etc is a folder")
        self.assertEqual(t.end(), 0)


class Display(ChatTest):
    QUESTION = "What is 27 + 45?"

    def test_thinking_is_dimmed(self):
        t = self.chat("--greedy")
        shown = t.say(self.QUESTION)
        self.assertRegex(shown, r"^27 \+ 45 = 72\.\n\n27 \+ 45 = 72\.\n\[")
        self.assertRegex(t.raw, r"\x1b\[2m27(.|\n)*?72\.(\x1b\[2m)?\x1b\[0m\r?\n")
        self.assertNotIn("</think>", t.screen)
        self.assertEqual(t.end(), 0)

    def test_folded_hidden_last_off(self):
        t = self.chat("--greedy", "--thinking", "fold")
        shown = t.say(self.QUESTION)
        tokens = int(re.search(r"\[thought for (\d+) tokens, [0-9.]+ s\]\n27 \+ 45 = 72\.\n\[", shown)[1])
        self.assertIn("[thinking: 1 tokens]", shown)
        # "27 + 45 = 72.\n" are 11 tokens and </think> ends it (golden data of this prompt).
        self.assertEqual(tokens, 11)
        self.assertEqual(t.say("/think last"), "27 + 45 = 72.\n")
        t.say("/think hide")
        self.assertTrue(t.say("/retry").startswith("27 + 45 = 72.\n["))
        self.assertIn("thinking is off", t.say("/think off"))
        self.assertTrue(t.say(CAPITAL).startswith("The capital of France"))
        self.assertIn("has no thinking", t.say("/think last"))
        self.assertIn("did you mean fold?", t.say("/think folt"))
        self.assertEqual(t.end(), 0)

    def test_no_color(self):
        t = self.chat("--greedy", env={"NO_COLOR": "1"})
        self.assertIn("[thinking]\n27 + 45 = 72.\n[answer]\n27 + 45 = 72.\n", t.say(self.QUESTION))
        self.assertNotRegex(t.raw, r"\x1b\[[0-9;]*m")
        self.assertEqual(t.end(), 0)

    def test_dumb_terminal(self):
        t = self.chat("--greedy", "--thinking", "fold", env={"TERM": "dumb"})
        self.assertRegex(t.say(self.QUESTION), r"\[thought for 11 tokens, [0-9.]+ s\]\n27 \+ 45 = 72\.\n")
        self.assertNotIn("\x1b", t.raw)
        self.assertEqual(t.end(), 0)

    def test_terminal_is_left_as_it_was(self):
        t = self.chat("--greedy", "--no-think")
        t.say(CAPITAL)
        before = termios.tcgetattr(t.fd)
        self.assertFalse(before[3] & termios.ICANON)  # while it edits
        fd = os.dup(t.fd)
        self.assertEqual(t.end(), 0)
        after = termios.tcgetattr(fd)
        os.close(fd)
        self.assertTrue(after[3] & termios.ICANON and after[3] & termios.ECHO)

    def test_resize(self):
        t = self.chat("--greedy", "--no-think")
        fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
        os.kill(t.pid, signal.SIGWINCH)
        self.assertIn(PARIS, t.say(CAPITAL))
        self.assertEqual(t.end(), 0)


class Overflow(ChatTest):
    def test_trim(self):
        t = self.chat("--greedy", "--no-think", "--context", "160")
        t.say("/system Be brief.")
        shown = ""
        for country in ["France", "Slovenia", "Italy", "Spain", "Poland", "Greece", "Norway", "Sweden"]:
            shown += t.say(f"What is the capital of {country}?")
        self.assertRegex(shown, r"\[warning: 1[2-5]\d of 160 tokens of the context are used")
        self.assertRegex(shown, r"\[the context of 160 tokens is full: dropped the oldest \d turns \(\d+ tokens\)")
        saved = self.saved(t)
        self.assertLessEqual(len(saved["tokens"]), 162)
        self.assertEqual(saved["turns"][-1]["user"], "What is the capital of Sweden?")
        self.assertIn("Stockholm", saved["turns"][-1]["answer"])
        self.assertLess(len(saved["turns"]), 8)
        self.assertGreater(saved["prefix"], 4)  # the system message stays
        self.assertEqual(saved["turns"][0]["first_token"], saved["prefix"])
        self.assertEqual(t.end(), 0)

    def test_trim_in_the_middle_of_an_answer(self):
        t = self.chat("--greedy", "--no-think", "--context", "256")
        t.say(CAPITAL)
        shown = t.say("Repeat the following text exactly: " + " ".join(["a b c d"] * 25))
        # The answer stops for the note and goes on after it.
        parts = re.search(r"^(A [a-d ]+)\n\[the context of 256 tokens is full: dropped the oldest turn \(31 tokens\)[^\n]*\n"
                          r"([a-d ]+)\n\[\d+ tokens, .*context 256/256 \| ended: the context is full\]", shown)
        turns = self.saved(t)["turns"]
        self.assertEqual(len(turns), 1)
        self.assertEqual(turns[0]["answer"], parts[1] + parts[2])
        # The next turn still works.
        self.assertIn(PARIS, t.say(CAPITAL))
        self.assertEqual(t.end(), 0)

    def test_stop(self):
        t = self.chat("--greedy", "--no-think", "--context", "96", "--overflow", "stop")
        shown = "".join(t.say(f"What is the capital of {c}?") for c in ["France", "Slovenia", "Italy", "Spain"])
        self.assertRegex(shown, r"error: the conversation has \d+ tokens and this message \d+; with 12 for the answer")
        turns = len(self.saved(t)["turns"])
        self.assertLess(turns, 4)
        t.say("/undo")
        self.assertIn("Madrid", t.say("What is the capital of Spain?"))
        long_message = t.say("word " * 120)
        self.assertRegex(long_message, r"error: this message has \d+ tokens, the context holds 96")
        self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
