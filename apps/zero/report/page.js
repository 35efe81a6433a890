"use strict";
const report = JSON.parse(document.getElementById("zerotorch-report").textContent);
const SPARE = ["#7a8fa6", "#a67a7a", "#7aa67f", "#a69a7a", "#8a7aa6", "#7aa3a6", "#a67a9d", "#8f8f8f"];
const LARGE = ["loss", "traced-memory", "timeline"];  // charts with buttons; all zoom by dragging
const CONFIG = {
  responsive: true, displaylogo: false, doubleClick: "reset", showEditInChartStudio: false, plotlyServerURL: "",
  modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
const AXIS = {
  gridcolor: "#e8ebef", linecolor: "#9aa3ad", zeroline: false, automargin: true, ticks: "outside", ticklen: 4,
  tickcolor: "#9aa3ad", exponentformat: "SI", minexponent: 3,
};
let drawn = 0;

// Plotly reads texts as a kind of HTML.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
const spaced = (name) => name.replaceAll("_", " ");
const numbered = (count) => count.toLocaleString("en");

function humanBytes(nbytes) {
  for (const [unit, size, digits] of [["GB", 1e9, 2], ["MB", 1e6, 1], ["kB", 1e3, 1]]) {
    if (nbytes >= size) return (nbytes / size).toFixed(digits) + " " + unit;
  }
  return nbytes.toFixed(0) + " bytes";
}

function unitFor(largest) {
  return largest >= 2e9 ? ["GB", 1e9] : largest >= 1e6 ? ["MB", 1e6] : ["kB", 1e3];
}

function translucent(colour, opacity) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${opacity})`;
}

// Known names first, in the order of `known`.
function inOrder(names, known) {
  const order = Object.keys(known), place = (name) => (order.indexOf(name) + 1000) % 1000;
  return [...new Set(names)].sort((a, b) => place(a) - place(b));
}

function coloursOf(names, known) {
  const others = names.filter((name) => !known[name]);
  return (name) => known[name] || SPARE[others.indexOf(name) % SPARE.length];
}

function layoutOf(title, more) {
  const family = getComputedStyle(document.body).fontFamily;
  return {
    font: {family, size: 12, color: "#1c2127"},
    title: {text: title, font: {size: 13, weight: 600}, x: 0, xref: "paper", y: 0.985, yanchor: "top"},
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", margin: {l: 56, r: 14, t: 34, b: 44},
    hoverlabel: {namelength: -1, font: {family, size: 12}, bgcolor: "#fff"}, ...more,
  };
}

async function draw(place, traces, layout) {
  const element = document.getElementById(place);
  await Plotly.react(element, traces, layout, {...CONFIG, displayModeBar: LARGE.includes(place)});
  if (!element.dataset.drawn) {
    element.dataset.drawn = "yes";
    document.documentElement.dataset.charts = String(++drawn);
  }
  return element;
}

// ---- Curves over the course of training

const AXES = {step: "step", tokens: "tokens", seconds: "seconds of training"};

function chosenAxis() {
  return document.querySelector("input[name=axis]:checked").value;
}

function shownRuns() {
  const chips = [...document.querySelectorAll(".chip[aria-pressed=false]")];
  const hidden = chips.map((chip) => Number(chip.dataset.run));
  return report.runs.filter((run, at) => !hidden.includes(at));
}

const named = (run, what) => report.runs.length > 1 ? `${short(run.name, 40)}, ${what}` : what;

// A line of one point shows nothing: then it has markers.
function line(run, curve, what, width, opacity = 1) {
  const {[chosenAxis()]: x, y} = run.curves[curve];
  return {
    type: "scatter", mode: y.length < 3 ? "lines+markers" : "lines", name: plain(named(run, what)), x, y, opacity,
    connectgaps: false, marker: {color: run.colour, size: 6}, line: {color: run.colour, dash: run.dash, width},
  };
}

function points(run, curve, what, marker) {
  const {[chosenAxis()]: x, y} = run.curves[curve];
  return {type: "scatter", mode: "markers", name: plain(named(run, what)), x, y,
          marker: {color: run.colour, size: 8, ...marker}};
}

function levels(runs, of) {
  const values = new Set(runs.map((run) => run[of]).filter((value) => value !== null));
  const dotted = {color: "#8b949e", width: 1.2, dash: "dot"};
  return [...values].map((value) => (
    {type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, layer: "below", line: dotted}));
}

function courseLayout(title, more) {
  const type = document.getElementById("log-axis").checked ? "log" : "linear";
  const xaxis = {...AXIS, type, title: {text: AXES[chosenAxis()], standoff: 6}};
  return layoutOf(title, {showlegend: false, hovermode: "x unified", xaxis, yaxis: AXIS, ...more});
}

// Each curve is thinner than the one before, so that those that coincide can all be seen.
const behind = (runs, at) => Math.min(runs.length - 1 - at, 3);

async function drawLoss(runs) {
  const traces = runs.map((run) => line(run, "loss", "step", 1, 0.3));
  runs.forEach((run, at) => traces.push(line(run, "loss_average", "average", 2 + 1.5 * behind(runs, at))));
  runs.forEach((run, at) => {
    const size = 9 + 2.5 * behind(runs, at);
    traces.push(points(run, "skipped", "skipped", {symbol: "x-thin", line: {color: run.colour, width: 1.5}}));
    traces.push(points(run, "val_loss", "validation", {line: {color: "#fff", width: 1.2}, size}));
  });
  const units = [...new Set(runs.map((run) => run.loss_unit))].join(", ");
  await draw("loss", traces.filter((trace) => trace.y.length), courseLayout("", {
    yaxis: {...AXIS, title: {text: units, standoff: 8}}, shapes: levels(runs, "unigram_entropy"),
    margin: {l: 60, r: 14, t: 14, b: 44}}));
}

async function drawSpeed(runs) {
  const each = runs.map((run) => line(run, "tokens_per_s", "step", 1, 0.3));
  const average = runs.map((run) => line(run, "tokens_per_s_average", "average", 2));
  const yaxis = {...AXIS, rangemode: "tozero"};
  await draw("tokens_per_s", each.concat(average), courseLayout("Tokens per second", {yaxis}));
}

async function drawNorms(runs) {
  const norms = runs.flatMap((run) => run.curves.grad_norm.y).filter((value) => value !== null);
  const least = norms.reduce((a, b) => Math.min(a, b), Infinity), most = norms.reduce((a, b) => Math.max(a, b), 0);
  const isWide = least > 0 && most > 30 * least;
  const title = "Gradient norm" + (isWide ? ", logarithmic" : "");
  const yaxis = isWide ? {...AXIS, type: "log", dtick: 1} : AXIS;
  await draw("grad_norm", runs.map((run) => line(run, "grad_norm", "norm", 1.2)),
             courseLayout(title, {shapes: levels(runs, "clipping"), yaxis}));
}

async function drawRates(runs) {
  const traces = runs.map((run, at) => line(run, "lr", "learning rate", 1.6 + 1.5 * behind(runs, at)));
  const yaxis = {...AXIS, rangemode: "tozero", exponentformat: "e"};
  await draw("lr", traces, courseLayout("Learning rate", {yaxis}));
}

async function drawCourse() {
  const runs = shownRuns();
  if (document.getElementById("loss")) await drawLoss(runs);
  if (!document.getElementById("lr")) return;
  await drawSpeed(runs);
  await drawNorms(runs);
  await drawRates(runs);
}

// ---- Bars

function barLayout(title, labels, more) {
  const tickvals = labels.map((_, at) => at), ticktext = labels.map((text) => plain(short(text, 20)) + " ");
  const bottom = {orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom"};
  return layoutOf(title, {
    barmode: "stack", bargap: 0.35, hovermode: "closest", legend: {...bottom, traceorder: "normal"}, showlegend: true,
    xaxis: {...AXIS, automargin: false},
    yaxis: {...AXIS, autorange: "reversed", ticks: "", tickmode: "array", tickvals, ticktext}, ...more});
}

async function drawTimesOf(which, title) {
  const runs = report.runs.filter((run) => run.ms_per_step);
  if (!runs.length) return;
  const traces = Object.entries(report.colours[which]).map(([part, color]) => ({
    type: "bar", orientation: "h", name: spaced(part), marker: {color}, y: runs.map((_, at) => at),
    x: runs.map((run) => run.ms_per_step[part]), hovertemplate: `%{x:,.2f} ms<extra>${spaced(part)}</extra>`}));
  await draw(which, traces.filter((trace) => trace.x.some((value) => value > 0)),
             barLayout(title, runs.map((run) => run.name), {margin: {l: 56, r: 14, t: 34, b: 104}}));
}

function barsOfMemory() {
  const several = report.runs.length > 1;
  return report.runs.filter((run) => run.memory).flatMap((run) => run.memory.by_rank.map((one) => ({
    label: (several ? short(run.name, 12) + ", " : "") + "rank " + one.rank, peak: one.peak,
    sum: Object.values(one.peak).reduce((a, b) => a + b, 0)})));
}

async function drawMemory() {
  const bars = barsOfMemory(), known = report.colours.kinds;
  if (!bars.length) return;
  const [unit, size] = unitFor(Math.max(...bars.map((bar) => bar.sum)));
  const kinds = inOrder(bars.flatMap((bar) => Object.keys(bar.peak)), known), colourOf = coloursOf(kinds, known);
  const traces = kinds.map((kind) => ({
    type: "bar", orientation: "h", name: plain(kind), marker: {color: colourOf(kind)}, y: bars.map((_, at) => at),
    x: bars.map((bar) => (bar.peak[kind] || 0) / size), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    customdata: bars.map((bar) => humanBytes(bar.peak[kind] || 0))}));
  const annotations = bars.map((bar, at) => ({x: bar.sum / size, y: at, text: humanBytes(bar.sum), showarrow: false,
                                              xanchor: "left", xshift: 5, font: {size: 11, color: "#5b6470"}}));
  await draw("memory", traces.filter((trace) => trace.x.some((value) => value > 0)),
             barLayout(`Peak by kind, ${unit}`, bars.map((bar) => bar.label),
                       {annotations, margin: {l: 56, r: 76, t: 34, b: 84}}));
}

// ---- A traced step

const TRACE_MARGIN = {l: 130, r: 200, t: 26, b: 40};
const RIGHT = {x: 1.01, y: 1};

function axisOfStep(trace) {
  return {...AXIS, range: [0, trace.ms], title: {text: "ms since the step began", standoff: 4}, automargin: false,
          exponentformat: "none", separatethousands: true};
}

function beginnings(trace) {
  const dotted = {color: "#4b5563", width: 1, dash: "dot"};
  const shapes = trace.begins.map((one) => (
    {type: "line", yref: "paper", y0: 0, y1: 1, x0: one.ms, x1: one.ms, line: dotted}));
  const labels = trace.begins.length > 10 ? [] : trace.begins.map((one) => (
    {x: one.ms, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", text: plain(one.name), showarrow: false,
     font: {size: 11, color: dotted.color}}));
  return {shapes, annotations: labels};
}

function curvesOfMemory(trace) {
  const ms = trace.memory.ms, known = report.colours.kinds;
  const kinds = Object.keys(trace.memory.kinds), colourOf = coloursOf(kinds, known);
  const totals = ms.map((_, at) => kinds.reduce((sum, kind) => sum + trace.memory.kinds[kind][at], 0));
  const largest = totals.reduce((a, b) => Math.max(a, b), 0);
  const resident = trace.resident.nbytes, mostResident = resident.reduce((a, b) => Math.max(a, b), 0);
  const [unit, size] = unitFor(Math.max(largest, ms.length ? 0 : mostResident));
  const curve = (name, x, nbytes, more) => ({
    type: "scatter", mode: "lines", name: plain(name), x, y: nbytes.map((value) => value / size),
    customdata: nbytes.map(humanBytes), hovertemplate: "%{customdata}", ...more});
  const curves = kinds.map((kind) => curve(kind, ms, trace.memory.kinds[kind], {
    stackgroup: "kinds", line: {shape: "hv", width: 0.5, color: colourOf(kind)},
    fillcolor: translucent(colourOf(kind), 0.85)}));
  if (ms.length) curves.push(curve("all kinds", ms, totals, {line: {shape: "hv", width: 1, color: "#1c2127"}}));
  if (resident.length) {
    const isFar = ms.length > 0 && mostResident > 2.5 * largest;  // it would leave no room for the kinds
    curves.push(curve("process (resident)", trace.resident.ms, resident, {
      line: {width: 1.5, color: "#1c2127", dash: "dash"}, visible: isFar ? "legendonly" : true}));
  }
  return [curves, unit];
}

function drawTracedMemory(trace) {
  const [curves, unit] = curvesOfMemory(trace);
  return draw("traced-memory", curves, layoutOf("", {
    ...beginnings(trace), margin: TRACE_MARGIN, hovermode: "x unified", xaxis: axisOfStep(trace), showlegend: true,
    yaxis: {...AXIS, rangemode: "tozero", title: {text: unit}, automargin: false},
    legend: {...RIGHT, traceorder: "reversed"}}));
}

function spansByName(trace) {
  const spans = new Map();
  trace.rows.forEach((row, at) => row.name.forEach((name, i) => {
    const columns = Object.keys(row).filter((column) => column !== "label");
    if (!spans.has(name)) spans.set(name, []);
    spans.get(name).push({at, ...Object.fromEntries(columns.map((column) => [column, row[column][i]]))});
  }));
  return spans;
}

function describeSpan(span) {
  const several = span.count > 1;
  const words = [several ? `${numbered(span.count)} × ${spaced(span.name)}` : `${spaced(span.name)} ${span.what}`];
  const busy = several ? `${span.busy.toFixed(3)} ms within ` : "";
  words.push(`${busy}${span.ms.toFixed(3)} ms, from ${span.begin.toFixed(3)} ms on`);
  if (span.nbytes !== null && span.nbytes >= 0) words.push(humanBytes(span.nbytes));
  return words.map(plain).join("<br>");
}

function barsOfSpans(name, color, spans, ms) {
  const opacity = spans.map((span) => span.count > 1 && span.ms > 0 ? 0.2 + 0.8 * span.busy / span.ms : 1);
  return {
    type: "bar", orientation: "h", name: plain(spaced(name)), marker: {color, opacity, line: {width: 0}}, width: 0.8,
    y: spans.map((span) => span.at), base: spans.map((span) => span.begin), x: spans.map((span) => span.ms),
    hovertemplate: "%{hovertext}<extra></extra>", hovertext: spans.map(describeSpan),
    text: spans.map((span) => span.ms > ms / 14 ? plain(spaced(name)) : ""), textposition: "inside", textangle: 0,
    insidetextanchor: "middle", insidetextfont: {size: 11, color: "#fff"}, constraintext: "none"};
}

function drawTimeline(trace) {
  const {phases, parts, calls} = report.colours;
  const known = {...phases, "forward and backward": "#93a7b8", ...parts, ...calls};
  const spans = spansByName(trace), names = inOrder(spans.keys(), known), colourOf = coloursOf(names, known);
  const labels = trace.rows.map((row) => plain(short(row.label, 22)) + " ");
  const height = Math.max(90 + 24 * labels.length, 76 + 21 * names.length);
  document.getElementById("timeline").style.height = `${height}px`;
  const bars = names.map((name) => barsOfSpans(name, colourOf(name), spans.get(name), trace.ms));
  return draw("timeline", bars, layoutOf("", {
    height, barmode: "overlay", margin: TRACE_MARGIN, hovermode: "closest", xaxis: axisOfStep(trace), showlegend: true,
    shapes: beginnings(trace).shapes, legend: {...RIGHT, traceorder: "normal"},
    yaxis: {...AXIS, range: [labels.length - 0.5, -0.5], ticks: "", showgrid: false, fixedrange: true,
            automargin: false, tickmode: "array", tickvals: labels.map((_, at) => at), ticktext: labels}}));
}

// Zooming one of them zooms the other.
function joinAxes(one, other) {
  one.on("plotly_relayout", (change) => {
    const ends = "xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    const range = change["xaxis.range"] || ends, now = other.layout.xaxis.range;
    if (range && (now[0] !== range[0] || now[1] !== range[1])) Plotly.relayout(other, {"xaxis.range": [...range]});
  });
}

function describeTrace(run, trace) {
  const words = [`${run.name}, rank ${trace.rank}${trace.step ? ", " + trace.step : ""}: ${trace.ms.toFixed(1)} ms.`];
  if (trace.spans_not_drawn) words.push(`${numbered(trace.spans_not_drawn)} spans have no room and are not drawn.`);
  if (trace.events_left_out) words.push(`${numbered(trace.events_left_out)} events are not in the trace: it was full.`);
  return words.join(" ");
}

async function drawTrace() {
  const choice = document.getElementById("traced-rank");
  if (!choice) return;
  const [run, rank] = choice.value.split(" ").map(Number), trace = report.runs[run].traces[rank];
  const memory = await drawTracedMemory(trace), timeline = await drawTimeline(trace);
  if (!choice.dataset.joined) {
    choice.dataset.joined = "yes";
    joinAxes(memory, timeline);
    joinAxes(timeline, memory);
  }
  document.getElementById("about-trace").textContent = describeTrace(report.runs[run], trace);
}

async function drawAll() {
  await drawCourse();
  await drawTimesOf("phases", "Phases of a step, ms");
  await drawTimesOf("parts", "Of these, the engine, ms");
  await drawMemory();
  await drawTrace();
  document.documentElement.dataset.done = "yes";
}

for (const input of document.querySelectorAll("input[name=axis], #log-axis")) {
  input.addEventListener("change", drawCourse);
}
for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") === "true" ? "false" : "true");
    drawCourse();
  });
}
document.getElementById("traced-rank")?.addEventListener("change", drawTrace);
// A printed page is 1180 pixels wide (see page.css) whatever the window is.
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll(".chart[data-drawn]")) {
    const columns = one.parentElement.className === "two" ? 2 : one.parentElement.className === "three" ? 3 : 1;
    Plotly.relayout(one, {width: Math.floor((1180 - 20 * (columns - 1)) / columns)});
  }
});
window.addEventListener("afterprint", () => {
  for (const one of document.querySelectorAll(".chart[data-drawn]")) {
    Plotly.relayout(one, {width: null, autosize: true});
  }
});
drawAll();
