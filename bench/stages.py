#!/usr/bin/env python3
"""Where the time of the main thread went, by span name, from a file that `--timeline FILE` wrote. Usage: stages.py FILE

Spans lie inside each other; "self" is a span's own time without those inside it.
"""
import collections
import json
import signal
import sys


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    events.sort(key=lambda e: (e["ts"], -e["dur"]))
    total, own, count = collections.Counter(), collections.Counter(), collections.Counter()
    stack = []
    for e in events:
        while stack and e["ts"] >= stack[-1]["ts"] + stack[-1]["dur"] - 1e-6:
            stack.pop()
        if stack:
            own[stack[-1]["name"]] -= e["dur"]
        total[e["name"]] += e["dur"]
        own[e["name"]] += e["dur"]
        count[e["name"]] += 1
        stack.append(e)
    everything = sum(own.values())
    print(f"{'span':26} {'count':>8} {'total ms':>10} {'self ms':>10} {'self us each':>13} {'share':>7}")
    for name, value in own.most_common():
        print(f"{name:26} {count[name]:8} {total[name] / 1e3:10.2f} {value / 1e3:10.2f} {value / count[name]:13.2f} "
              f"{100 * value / everything:6.1f}%")


if __name__ == "__main__":
    main()
