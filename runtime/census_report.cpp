#include "runtime/census_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "placement/census_stats.h"

namespace tandem {
namespace {

// The page without its data. All figures are computed in the page from the counts, by the formulas of
// placement/census_stats.h.
constexpr std::string_view kHead = R"page(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Expert census</title>
<style>
:root { color-scheme: light dark; --page:#f6f7f9; --card:#fff; --ink:#1b1f24; --soft:#5b6470; --line:#dfe3e8; --grid:#e9ecf0;
  --h0:#eef2f7; --h1:#b7d3ef; --h2:#64a0dd; --h3:#2565b0; --h4:#0b2f61;
  --c0:#2a78d6; --c1:#d9652b; --c2:#15936a; --c3:#8a5cd6; --c4:#b8860b; --c5:#d04a78; --c6:#4d7d8c; --c7:#7a6a53; }
@media (prefers-color-scheme: dark) { :root { --page:#0f1216; --card:#171b21; --ink:#e6e9ed; --soft:#98a2ae; --line:#2a3038; --grid:#242a32;
  --h0:#1a2028; --h1:#173b66; --h2:#2368b3; --h3:#62a8ea; --h4:#d8ebff;
  --c0:#5aa0ee; --c1:#ee8a55; --c2:#3cc094; --c3:#b18cf0; --c4:#dcae3c; --c5:#ee7ba3; --c6:#86b3c1; --c7:#b5a58e; } }
* { box-sizing: border-box } body { margin:0; background:var(--page); color:var(--ink); font:15px/1.45 system-ui, sans-serif }
main { max-width:1180px; margin:0 auto; padding:20px 16px 48px } h1 { font-size:22px; margin:0 0 2px } h2 { font-size:16px; margin:0 0 2px }
p { margin:0 0 10px; color:var(--soft) } section { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:16px; margin-top:14px; min-width:0 }
.two { display:grid; grid-template-columns:1fr 1fr; gap:14px } .two section { margin-top:14px }
@media (max-width:820px) { .two { grid-template-columns:1fr; gap:0 } }
.bar { display:flex; flex-wrap:wrap; gap:8px 18px; align-items:center; margin-top:14px } label { color:var(--soft) }
select { font:inherit; color:var(--ink); background:var(--card); border:1px solid var(--line); border-radius:6px; padding:3px 6px; margin-left:4px }
table { border-collapse:collapse; font-variant-numeric:tabular-nums } th,td { padding:3px 14px 3px 0; text-align:right; white-space:nowrap } th { color:var(--soft); font-weight:500 }
th:first-child,td:first-child,#rows th:nth-child(2),#rows td:nth-child(2) { text-align:left } .scroll { overflow-x:auto } canvas,svg { display:block; width:100% }
.matrix td { padding:8px 12px; text-align:center; min-width:76px; border:2px solid var(--card); border-radius:6px } .matrix th { padding:4px 12px 4px 0; text-align:center }
.matrix th:first-child { text-align:left } text { fill:var(--soft); font:12px system-ui, sans-serif } .legend { display:flex; flex-wrap:wrap; gap:4px 16px; margin-top:8px; color:var(--soft); font-size:13px }
.legend i { display:inline-block; width:18px; height:3px; vertical-align:middle; margin-right:6px; border-radius:2px }
.ramp { display:inline-block; width:160px; height:10px; border-radius:3px; vertical-align:middle; margin:0 6px }
#ramp { position:relative } #even { position:absolute; top:-3px; bottom:-3px; width:2px; background:var(--ink) }
#tip { position:fixed; pointer-events:none; background:var(--ink); color:var(--page); padding:4px 8px; border-radius:6px; font-size:13px; display:none; z-index:9; white-space:nowrap }
</style></head><body><main>
<h1 id="title"></h1><p id="about"></p>
<section><h2>What was counted</h2><p>Rows are positions of text; every row goes to a few experts of each bank. The share of routes that the hottest experts carry is the mean over the banks.</p><div class="scroll"><table id="rows"></table></div></section>
<div class="bar"><label>Domain<select id="domain"></select></label><label>Phase<select id="phase"><option value="">both</option><option>prefill</option><option>decode</option></select></label>
<label>Experts<select id="order"><option value="index">by number</option><option value="hot">hottest first</option></select></label></div>
<section><h2>Share of routes by bank and expert</h2><p>One row is the experts of one layer. Colour: how often an expert is chosen against the even share.</p><canvas id="map"></canvas>
<div class="legend"><span>never<span class="ramp" id="ramp"><b id="even"></b></span><span id="most"></span></span><span>the mark: the even share</span></div></section>
<div class="two"><section><h2>Coverage by bank</h2><p>Share of the routes that the hottest experts of a bank carry.</p><svg id="coverage"></svg><div class="legend" id="coverageLegend"></div></section>
<section><h2>Predicted hit rate</h2><p>Routes that find their expert on the card, filled with the hottest experts of all banks.</p><svg id="hits"></svg><div class="legend" id="hitsLegend"></div></section></div>
<section id="overlap"><h2>How far domains agree</h2><p>Upper figure: of the hottest fifth of the experts, the part that both share. Lower: the part of the routes that goes to other experts. Means over the banks.</p><div class="scroll"><table class="matrix" id="matrix"></table></div></section>
</main><div id="tip"></div>
<script>
const census = )page";

constexpr std::string_view kScript = R"page(;
const $ = id => document.getElementById(id), css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const E = census.experts, B = census.banks, FRACTIONS = [.1, .2, .4], percent = x => (100 * x).toFixed(1) + " %";
const el = (tag, attributes, text) => { const e = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const k in attributes) e.setAttribute(k, attributes[k]); if (text !== undefined) e.textContent = text; return e; };
const html = (tag, text, parent) => { const e = document.createElement(tag); e.textContent = text; if (parent) parent.appendChild(e); return e; };
const mean = list => list.reduce((a, b) => a + b, 0) / Math.max(1, list.length);
// Counts of a domain ("" for all) and a phase ("" for both), per bank; banks without counts are left out.
function shares(domain, phase) {
  const sum = Array.from({length: B}, () => new Float64Array(E));
  for (const d of census.domains) if (!domain || d.name === domain) for (const p of ["prefill", "decode"]) if ((!phase || p === phase) && d[p])
    d[p].routes.forEach((bank, b) => bank.forEach((n, e) => sum[b][e] += n));
  const out = [];
  sum.forEach((bank, b) => { const total = bank.reduce((x, y) => x + y, 0); if (total > 0) out.push({bank: b, share: Array.from(bank, n => n / total)}); });
  return out;
}
const hottest = share => share.map((s, e) => e).sort((a, b) => share[b] - share[a] || a - b);
const count = f => Math.min(E, Math.max(1, Math.round(f * E)));
function curve(share) { let sum = 0; return [0, ...share.slice().sort((a, b) => b - a).map(s => sum += s)]; }
const coverage = (banks, f) => mean(banks.map(b => curve(b.share)[count(f)]));
let most = 8; // the colour scale ends at this many times the even share
const heat = share => Math.min(1, Math.log2(1 + share * E) / Math.log2(1 + most));
function ramp(x) {
  const stops = [0, 1, 2, 3, 4].map(i => css("--h" + i)), at = Math.min(1, Math.max(0, x)) * 4, i = Math.min(3, Math.floor(at)), f = at - i;
  const rgb = c => [1, 3, 5].map(k => parseInt(c.substr(k, 2), 16)), a = rgb(stops[i]), b = rgb(stops[i + 1]);
  return a.map((v, k) => Math.round(v + f * (b[k] - v)));
}
const rgb = x => `rgb(${ramp(x).join(",")})`, ink = x => { const c = ramp(x); return c[0] * .3 + c[1] * .59 + c[2] * .11 > 140 ? "#14181d" : "#fff"; };
function tip(event, text) { const t = $("tip"); t.style.display = text ? "block" : "none"; if (!text) return; t.textContent = text;
  t.style.left = Math.min(event.clientX + 14, innerWidth - t.offsetWidth - 8) + "px"; t.style.top = event.clientY + 14 + "px"; }

function drawRows() {
  const table = $("rows"); table.textContent = "";
  const head = html("tr", "", table); for (const t of ["domain", "phase", "rows", "top 10 %", "top 20 %", "top 40 %"]) html("th", t, head);
  for (const d of census.domains) for (const p of ["prefill", "decode"]) if (d[p]) { const tr = html("tr", "", table), s = shares(d.name, p);
    for (const t of [d.name, p, d[p].rows.toLocaleString("en"), ...FRACTIONS.map(f => percent(coverage(s, f)))]) html("td", t, tr); }
}
function drawMap(banks) {
  const canvas = $("map"), width = canvas.clientWidth, left = 34, bottom = 22, ratio = devicePixelRatio || 1, n = Math.max(1, banks.length);
  const cellH = Math.max(9, Math.min(24, Math.round(560 / n))), cellW = (width - left - 2) / E, height = n * cellH + bottom;
  canvas.style.height = height + "px"; canvas.width = width * ratio; canvas.height = height * ratio;
  const g = canvas.getContext("2d"); g.scale(ratio, ratio); g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
  const byHeat = $("order").value === "hot", rows = banks.map(b => { const order = byHeat ? hottest(b.share) : b.share.map((s, e) => e); return {bank: b.bank, order, share: b.share}; });
  const colors = Array.from({length: 256}, (_, i) => rgb(i / 255)), gap = cellW > 5 ? 1 : 0, step = Math.ceil(14 / cellH);
  rows.forEach((r, y) => { r.order.forEach((e, x) => { g.fillStyle = colors[Math.round(255 * heat(r.share[e]))]; g.fillRect(left + x * cellW, y * cellH, Math.max(cellW - gap, cellW < 1 ? 1 : .5), cellH - (cellH > 8 ? 1 : 0)); });
    if (y % step === 0) { g.fillStyle = css("--soft"); g.textAlign = "right"; g.fillText(r.bank, left - 7, y * cellH + cellH / 2); } });
  g.fillStyle = css("--soft"); const tick = [1, 2, 4, 8, 16, 32, 64, 128].find(t => t * cellW > 46) || 256;
  for (let e = 0; e < E; e += tick) { g.textAlign = e === 0 ? "left" : "center"; g.fillText(byHeat ? "#" + (e + 1) : e, left + (e === 0 ? 0 : (e + .5) * cellW), height - 9); }
  canvas.onmousemove = event => { const box = canvas.getBoundingClientRect(), x = Math.floor((event.clientX - box.left - left) / cellW), y = Math.floor((event.clientY - box.top) / cellH), r = rows[y];
    if (!r || x < 0 || x >= E) return tip(event, ""); const e = r.order[x]; tip(event, `layer ${r.bank}, expert ${e}: ${(100 * r.share[e]).toFixed(2)} % of routes, ${(r.share[e] * E).toFixed(2)} times the even share`); };
  canvas.onmouseleave = event => tip(event, "");
}
// Lines over 0..1 x 0..1 with axes; line: {points: y at equal steps, color, width, dash, name}.
function drawLines(svg, lines, xTitle) {
  const width = svg.clientWidth || 400, height = Math.round(Math.max(240, Math.min(340, width * .68))), l = 44, r = 12, t = 10, b = 42, w = width - l - r, h = height - t - b;
  svg.textContent = ""; svg.setAttribute("viewBox", `0 0 ${width} ${height}`); svg.style.height = height + "px";
  const X = x => l + x * w, Y = y => t + (1 - y) * h;
  for (let i = 0; i <= 5; ++i) { const v = i / 5;
    svg.append(el("line", {x1: l, x2: l + w, y1: Y(v), y2: Y(v), stroke: css("--grid")}), el("text", {x: l - 8, y: Y(v) + 4, "text-anchor": "end"}, 100 * v + " %"));
    svg.append(el("line", {x1: X(v), x2: X(v), y1: t, y2: t + h, stroke: css("--grid")}), el("text", {x: X(v), y: t + h + 17, "text-anchor": i === 5 ? "end" : "middle"}, 100 * v + " %")); }
  svg.append(el("text", {x: l + w / 2, y: height - 6, "text-anchor": "middle"}, xTitle));
  for (const line of lines) if (line.points.length) { const n = line.points.length - 1;
    svg.append(el("path", {d: "M" + line.points.map((y, i) => X(i / n).toFixed(1) + " " + Y(y).toFixed(1)).join("L"), fill: "none", stroke: line.color, "stroke-width": line.width || 2, "stroke-dasharray": line.dash || "", "stroke-opacity": line.opacity || 1, "stroke-linejoin": "round"})); }
  svg.onmousemove = event => { const box = svg.getBoundingClientRect(), x = (event.clientX - box.left - l) / w; if (x < 0 || x > 1) return tip(event, "");
    tip(event, `${Math.round(100 * x)} % of experts: ` + lines.filter(k => k.name && k.points.length).map(k => `${k.name} ${percent(k.points[Math.round(x * (k.points.length - 1))])}`).join(", ")); };
  svg.onmouseleave = event => tip(event, "");
}
function legend(id, lines) { const box = $(id); box.textContent = ""; for (const k of lines) if (k.legend) { const span = html("span", "", box), i = html("i", "", span); i.style.background = k.dash ? `repeating-linear-gradient(90deg, ${k.color} 0 5px, transparent 5px 8px)` : k.color; span.append(k.legend); } }
function drawCoverage(banks) {
  const n = Math.max(1, banks.length - 1), lines = banks.map((b, i) => ({points: curve(b.share), color: rgb(.3 + .7 * i / n), width: 1.2, opacity: .8}));
  if (banks.length) { const all = lines.map(k => k.points); lines.push({points: all[0].map((_, i) => mean(all.map(p => p[i]))), color: css("--c1"), width: 2.5, name: "mean", legend: "mean over the banks"}); }
  lines.push({points: [0, 1], color: css("--soft"), width: 1.2, dash: "4 4", legend: "even use"});
  drawLines($("coverage"), lines, "share of a bank's experts, hottest first");
  legend("coverageLegend", [{color: rgb(.3), legend: "first layer"}, {color: rgb(1), legend: "last layer"}, ...lines]);
}
function hitCurve(banks, order) {
  const by = new Map(order.map(o => [o.bank, o.share])), slots = [];
  for (const b of banks) b.share.forEach((s, e) => slots.push([by.has(b.bank) ? by.get(b.bank)[e] : 0, s]));
  slots.sort((x, y) => y[0] - x[0]); let sum = 0; return [0, ...slots.map(s => (sum += s[1]) / banks.length)];
}
function drawHits(phase) {
  const all = shares("", phase), lines = [], names = census.domains.map(d => d.name);
  names.forEach((name, i) => { const s = shares(name, phase), color = css("--c" + i % 8); if (!s.length) return;
    lines.push({points: hitCurve(s, all), color, name, legend: names.length > 1 ? name + ", card filled by all domains" : name});
    if (names.length > 1) lines.push({points: hitCurve(s, s), color, width: 1.4, dash: "4 4"}); });
  if (names.length > 1) lines.push({points: [], color: css("--soft"), dash: "4 4", legend: "filled by the domain alone"});
  drawLines($("hits"), lines, "share of all expert bytes on the card"); legend("hitsLegend", lines);
}
function drawMatrix(phase) {
  const list = census.domains.map(d => ({name: d.name, banks: shares(d.name, phase)})).filter(d => d.banks.length); $("overlap").style.display = list.length > 1 ? "" : "none";
  const table = $("matrix"), n = count(.2); table.textContent = ""; const head = html("tr", "", table); html("th", "", head); list.forEach(d => html("th", d.name, head));
  for (const a of list) { const tr = html("tr", "", table); html("th", a.name, tr);
    for (const b of list) { const same = [], away = []; for (const x of a.banks) { const y = b.banks.find(k => k.bank === x.bank); if (!y) continue;
        const hot = new Set(hottest(x.share).slice(0, n)); same.push(hottest(y.share).slice(0, n).filter(e => hot.has(e)).length / n); away.push(mean(x.share.map((s, e) => Math.abs(s - y.share[e]))) * E / 2); }
      const td = html("td", "", tr), v = mean(same); td.style.background = rgb(v); td.style.color = ink(v); html("b", percent(v), td); td.append(document.createElement("br"), percent(mean(away))); } }
}
function draw() {
  const domain = $("domain").value, phase = $("phase").value, banks = shares(domain, phase);
  $("ramp").style.background = `linear-gradient(90deg, ${[0, .25, .5, .75, 1].map(rgb).join(",")})`;
  most = Math.min(16, Math.max(2, Math.ceil(Math.max(...banks.map(b => Math.max(...b.share)), 0) * E)));
  $("even").style.left = 100 * heat(1 / E) + "%"; $("most").textContent = most + " times the even share" + (most === 16 ? " or more" : "");
  drawMap(banks); drawCoverage(banks); drawHits(phase); drawMatrix(phase);
}
$("title").textContent = "Expert census: " + (census.model || census.name);
$("about").textContent = `${B} banks of ${E} experts, ${census.used} used by a row. Model ${census.fingerprint}. From ${census.name}.`;
const all = html("option", "all together", $("domain")); all.value = ""; for (const d of census.domains) html("option", d.name, $("domain")).value = d.name;
const want = new URLSearchParams(location.hash.slice(1)); for (const id of ["domain", "phase", "order"]) { if (want.get(id)) $(id).value = want.get(id); $(id).onchange = draw; }
drawRows(); draw(); addEventListener("resize", draw); matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawRows(); draw(); });
</script></body></html>
)page";

nlohmann::ordered_json counts_json(const Census& census, const RouteCounts& counts) {
  auto banks = nlohmann::ordered_json::array();
  const auto experts = static_cast<std::ptrdiff_t>(census.experts);
  for (auto at = counts.routes.begin(); at != counts.routes.end(); at += experts)
    banks.push_back(std::vector<std::uint64_t>(at, at + experts));
  return {{"rows", counts.rows}, {"routes", std::move(banks)}};
}

}  // namespace

std::string census_report(const Census& census, const std::string& name) {
  auto domains = nlohmann::ordered_json::array();
  for (const auto& [domain, counts] : census.domains) {
    nlohmann::ordered_json entry{{"name", domain}};
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode})
      if (!counts.of(phase).routes.empty())
        entry[std::string(phase_name(phase))] = counts_json(census, counts.of(phase));
    domains.push_back(std::move(entry));
  }
  const nlohmann::ordered_json json{{"name", name},
                                    {"model", census.model},
                                    {"fingerprint", fmt::format("{:016x}", census.fingerprint)},
                                    {"banks", census.banks},
                                    {"experts", census.experts},
                                    {"used", census.used},
                                    {"domains", std::move(domains)}};
  std::string data = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // A name must not be able to end the script.
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos;) data.replace(at, 1, "\\u003c");
  return std::string(kHead) + data + std::string(kScript);
}

}  // namespace tandem
