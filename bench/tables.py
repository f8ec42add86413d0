#!/usr/bin/env python3
"""Turns the CSV files of one machine into the tables of bench/results.

  tables.py FOLDER > FOLDER.md
  tables.py --self-test

FOLDER holds machine.csv, experts.csv and decode.csv as bench/run_device.sh writes them, and for a card gpu_kernels.csv
(bench_gpu_kernels) and round.csv (bench_round); what is missing is left out.
Where a line was measured more than once, the last one counts.
"""

import csv
import pathlib
import sys
import tempfile


def read(path):
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def machine_table(rows):
    last = {(int(r["workers"])): r for r in rows}
    yield "## Read roof"
    yield ""
    yield from table(["workers", "GB/s, median", "best"],
                     [[str(w), last[w]["read_gbs"], last[w]["best_gbs"]] for w in sorted(last)])
    yield ""


def experts_table(rows):
    """One table per worker count: GB/s of file bytes, and the share of the read roof at one row per pass."""
    cells = {(int(r["workers"]), r["type"], r["isa"], int(r["w"])): r for r in rows}
    for workers in sorted({key[0] for key in cells}):
        widths = sorted({key[3] for key in cells if key[0] == workers})
        kernels = dict.fromkeys((key[1], key[2]) for key in cells if key[0] == workers)
        yield f"## Expert kernels, {workers} worker{'s' if workers > 1 else ''}"
        yield ""
        lines = []
        for name, isa in sorted(kernels, key=lambda k: (k[0], list(kernels).index(k))):
            found = [cells.get((workers, name, isa, w)) for w in widths]
            first = next((cell for cell in found if cell), None)
            lines.append([name, isa] + [cell["gbs"] if cell else "" for cell in found]
                         + [f"{100 * float(first['share']):.0f} %", first["roof_gbs"]])
        yield from table(["type", "kernel"] + [f"w = {w}" for w in widths] + [f"share, w = {widths[0]}", "roof"], lines)
        yield ""


def decode_table(rows):
    cells = {(r["model"], int(r["workers"]), int(r["w"])): r for r in rows}
    yield "## Decode"
    yield ""
    yield from table(["model", "workers", "w", "tok/s", "ms a pass", "p95", "MB a pass", "GB/s", "roof", "share"],
                     [[key[0], str(key[1]), str(key[2]), r["tok_s"], r["ms_median"], r["ms_p95"], r["pass_mb"], r["gbs"],
                       r["roof_gbs"], f"{100 * float(r['share']):.0f} %"] for key, r in sorted(cells.items())])
    yield ""


def gpu_kernels_table(rows):
    """The faster of the routes of each product, with its share of the copy roof; the same bytes only read beside it."""
    best = {}
    for r in rows:
        if r["what"] in ("matrix", "read", "experts") and float(r["us"]) > 0:
            key = (r["what"], r["type"], int(r["rows"]), int(r["cols"]), int(r["width"]))
            if key not in best or float(r["us"]) < float(best[key]["us"]):
                best[key] = r
    roof = next((r["gb_s"] for r in rows if r["what"] == "copy"), "")
    yield "## Quantised products on the card"
    yield ""
    yield f"Microseconds and share of the copy roof ({roof} GB/s, bytes read and written); the faster of dp4a and mma. " \
          "\"read\": a kernel that only reads the same bytes."
    yield ""
    for what, title in (("matrix", "matrix"), ("experts", "experts of a layer")):
        widths = sorted({key[4] for key in best if key[0] == what})
        shapes = dict.fromkeys((key[1], key[2], key[3]) for key in best if key[0] == what)
        if not shapes:
            continue
        cell = lambda r: f"{float(r['us']):.1f}, {100 * float(r['share_of_copy']):.0f} %" if r else ""
        yield from table([title, "read"] + [f"w = {w}" for w in widths],
                         [[f"{name} {rows_} x {cols}" if rows_ else name, cell(best.get(("read", name, rows_, cols, 0)))]
                          + [cell(best.get((what, name, rows_, cols, w))) for w in widths]
                          for name, rows_, cols in shapes])
        yield ""


def round_table(rows):
    last = {(r["model"], float(r["residency"]), int(r["w"])): r for r in rows}
    yield "## Rounds"
    yield ""
    yield "Milliseconds of a pass of w rows of random text, experts on the card drawn at random or by a census. \"bound\": the larger of the card's bytes " \
          "over its read rate and the crew's over the RAM's, both measured in the same run."
    yield ""
    yield from table(["model", "on the card", "w", "ms", "p95", "bound", "over it", "predicted", "card MB", "crew MB", "misses",
                      "crew ms"],
                     [[key[0], f"{100 * key[1]:.0f} %", str(key[2]), r["ms_median"], r["ms_p95"], r["bound_ms"],
                       r["over_bound"], r["predicted_ms"], r["card_mb"], r["crew_mb"], r["misses"], r["crew_ms"]]
                      for key, r in sorted(last.items())])
    yield ""


def document(folder):
    parts = (("machine.csv", machine_table), ("experts.csv", experts_table), ("decode.csv", decode_table),
             ("gpu_kernels.csv", gpu_kernels_table), ("round.csv", round_table))
    found = [(read(folder / name), make) for name, make in parts]
    lines = [row for rows, _ in found for row in rows]
    if not lines:
        raise SystemExit(f"tables.py: {folder}: expected machine.csv, experts.csv, decode.csv, gpu_kernels.csv or round.csv, found none with lines")
    yield f"# {lines[0]['machine']}: {lines[0]['cpu']}"
    yield ""
    yield f"Load average when the programs started: {max(float(r['load']) for r in lines):.1f} at most. " \
          f"Measured {', '.join(sorted({r['date'] for r in lines}))} at commit " \
          f"{', '.join(sorted({r['commit'] for r in lines}))} by the programs of `bench/README.md`; " \
          f"this page by `bench/tables.py bench/results/{folder.name}`."
    yield ""
    for rows, make in found:
        if rows:
            yield from make(rows)


def self_test():
    common = "2026-01-02,abc123,box,\"A fast, \"\"one\"\"\",0.50"
    head = "date,commit,machine,cpu,load,"
    files = {
        "machine.csv": [head + "isa,workers,buffer_mib,samples,read_gbs,best_gbs", common + ",avx2,2,512,41,30.00,31.00",
                        common + ",avx2,1,512,41,20.00,21.00"],
        "experts.csv": [head + "type,isa,rows,cols,w,workers,samples,gbs,p95_gbs,per_core_gbs,roof_gbs,share",
                        common + ",Q4_K,avx2,640,2560,1,2,11,5.000,4.000,2.500,30.00,0.167",  # measured again below
                        common + ",Q4_K,avx2,640,2560,4,2,11,7.000,6.000,3.500,30.00,0.233",
                        common + ",Q4_K,avx2,640,2560,1,2,11,9.000,8.000,4.500,30.00,0.300"],
        "gpu_kernels.csv": [head + "card,what,type,rows,cols,width,route,bytes,us,gb_s,share_of_copy",
                            common + ",C,copy,,0,0,0,copy,1000,1.0,4000,1.000",
                            common + ",C,read,Q4_K,64,256,0,read,1000,1.5,3000,0.750",
                            common + ",C,matrix,Q4_K,64,256,1,dp4a,1000,2.0,2000,0.500",
                            common + ",C,matrix,Q4_K,64,256,1,mma,1000,3.0,1500,0.375"],
        "round.csv": [head + "model,workers,residency,w,ms_median,ms_p95,card_mb,crew_mb,misses,crew_ms,card_gbs,crew_gbs,"
                      "bound_ms,over_bound,predicted_ms,hit_rate",
                      common + ",m.gguf,2,0.92,4,3.0000,3.1000,100.00,10.00,2.00,0.500,4000,40,1.0000,3.000,2.0000,0.9200"],
    }
    expected = [
        "| Q4_K 64 x 256 | 1.5, 75 % | 2.0, 50 % |",
        "| m.gguf | 92 % | 4 | 3.0000 | 3.1000 | 1.0000 | 3.000 | 2.0000 | 100.00 | 10.00 | 2.00 | 0.500 |",

        "# box: A fast, \"one\"", "| 1 | 20.00 | 21.00 |", "## Expert kernels, 2 workers",
        "| type | kernel | w = 1 | w = 4 | share, w = 1 | roof |", "| Q4_K | avx2 | 9.000 | 7.000 | 30 % | 30.00 |"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, lines in files.items():
            (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = list(document(folder))
    missing = [line for line in expected if line not in found]
    unwanted = [line for line in found if "5.000" in line or line == "## Decode"]
    order = found.index("| 1 | 20.00 | 21.00 |") < found.index("| 2 | 30.00 | 31.00 |")
    for line in missing + unwanted:
        print(f"tables.py self-test: {line}", file=sys.stderr)
    return 1 if missing or unwanted or not order else 0


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    if sys.argv[1] == "--self-test":
        return self_test()
    print("\n".join(document(pathlib.Path(sys.argv[1]))).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
