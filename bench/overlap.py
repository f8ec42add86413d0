#!/usr/bin/env python3
"""How far the two sides of a round ran at the same time, from a file that `--timeline FILE` wrote.

Usage: overlap.py FILE

For every wait for the crew: the time from the moment the crew's first span of the layer began to the end of the wait is
the crew's work; what of it ran while the card's side worked (experts on the card, shared expert) is the overlap, the
rest is what the card's side waited.
"""
import json
import signal
import sys


def spans(events, tid, names):
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid and e["name"] in names)


def common(a, b):
    """Total length of the intersection of two sorted lists of disjoint spans."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def length(a):
    return sum(end - begin for begin, end in a)


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    card = spans(events, 0, {"experts on the card", "shared expert"})
    wait = spans(events, 0, {"wait for the crew"})
    print(f"card's side: {length(card) / 1e3:.1f} ms on its experts, {length(wait) / 1e3:.1f} ms waiting for the crew")
    for tid, name in sorted(names.items()):
        if not name.startswith("crew"):
            continue
        crew = spans(events, tid, {"experts"})
        if not crew:
            continue
        beside = common(crew, card)
        print(f"{name}: {length(crew) / 1e3:.1f} ms on off-card experts, {beside / 1e3:.1f} ms of it "
              f"({100 * beside / length(crew):.0f} %) beside the card's experts")


if __name__ == "__main__":
    main()
