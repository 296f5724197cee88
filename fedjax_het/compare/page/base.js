"use strict";
const DATA = JSON.parse(document.getElementById("content").textContent);
// Okabe & Ito's colours; with dashes and markers besides, no two of 35 lines are alike, nor need colour be seen.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon"];
const STROKES = {solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4"};
const FEW_MARKERS = 25, MANY_LINES = 12, MANY_BANDS = 8, HANDFUL = 12, FIGURES = ["mean", "worst10", "best10", "std", "gini", "gap"];
const SPELLED = {mean: "mean", worst10: "worst 10 %", best10: "best 10 %", std: "spread", gini: "Gini", gap: "gap"};
const view = {
  model: "personalized", metric: DATA.metric, baseline: DATA.baseline, curve: "mean", over: DATA.over,
  shown: new Set(DATA.groups.keys()), sort: null, falling: false,
};

const $ = (id) => document.getElementById(id);
const known = (x) => x !== null && x !== undefined && Number.isFinite(x);
const metricOf = (name) => DATA.metrics[name] || {label: name, title: name, unit: "", factor: 1};
// Text as Plotly shows it, which takes a few HTML elements and entities for what they are.
const asText = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const spelled = (model) => model.replace("personalized", "personalised");

function element(tag, text, fields) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  return Object.assign(made, fields || {});
}

function styleOf(place) {
  return {colour: COLOURS[place % 7], dash: DASHES[place % 5], marker: MARKERS[place % 8]};
}

function faint(colour, alpha) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}

function withUnit(name, metric) {
  return metric.unit ? `${name} (${metric.unit})` : name;
}

// A figure as people read it, in percent where the metric is; `figure` may be one without a unit, as Gini is.
function number(value, metric, figure) {
  if (!known(value)) return "–";
  const percent = metric.unit === "%" && figure !== "gini";
  return percent ? (100 * value).toFixed(2) : value.toFixed(4);
}

// Mean over seeds and half its 95 % interval by Student's t; half is null for fewer than two.
function interval(values) {
  const n = values.length;
  if (!n) return {mean: null, half: null, n};
  const mean = values.reduce((sum, x) => sum + x, 0) / n;
  if (n < 2) return {mean, half: null, n};
  const variance = values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1);
  return {mean, half: DATA.quantiles[n - 2] * Math.sqrt(variance / n), n};
}

function reading(own, metric, sign) {
  const mean = (sign && own.mean > 0 ? "+" : "") + number(own.mean, metric);
  return own.half === null ? mean : `${mean} ± ${number(own.half, metric)}`;
}

// A part of a run's budget as people read it.
function amount(name, value) {
  if (!known(value)) return "–";
  if (name === "client_steps") return Math.round(value).toLocaleString("en");
  if (name.endsWith("seconds")) return `${value < 100 ? Number(value.toPrecision(3)) : Math.round(value).toLocaleString("en")} s`;
  const power = [4, 3, 2, 1].find((p) => value >= 1000 ** p) || 0;
  return `${Number((value / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function figureOf(run, model, metric, figure) {
  const own = ((run.metrics[model] || {})[metric] || {})[figure];
  return known(own) ? own : null;
}

// seed -> figure, of the runs of a group that count.
function bySeed(group, figure) {
  const found = new Map();
  for (const place of group.counted) {
    const run = DATA.runs[place], value = figureOf(run, view.model, view.metric, figure);
    if (value !== null) found.set(run.seed, value);
  }
  return found;
}

function paired(own, other) {
  return interval([...own.keys()].filter((seed) => other.has(seed)).map((seed) => own.get(seed) - other.get(seed)));
}

// The fields in which a group's clients' data are not those of another, as in groups.py.
function unlike(own, other) {
  const found = Object.keys(own.data).filter((name) => valueText(own.data[name]) !== valueText(other.data[name]));
  return found.includes("dataset") ? ["dataset"] : found;
}

function countedRuns(group) {
  return (group.counted.length ? group.counted : group.runs).map((place) => DATA.runs[place]);
}

function shownGroups() {
  return [...DATA.groups.entries()].filter(([place]) => view.shown.has(place));
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", text, {value, selected: value === chosen})));
}

function layout(x, y, more) {
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue("--text").trim(), line = style.getPropertyValue("--line").trim();
  const axis = (title) => ({
    title: {text: asText(title)}, gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true,
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: text, size: 13},
    margin: {l: 60, r: 20, t: 16, b: 50}, xaxis: axis(x), yaxis: axis(y), hovermode: "closest",
    hoverlabel: {namelength: -1}, legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, ...more,
  };
}

function draw(place, traces, look) {
  const at = typeof place === "string" ? $(place) : place;
  Plotly.react(at, traces, look, {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"]});
}

// A group's line with its seeds' range as a band: rows is a list of [y, ...], one a seed, over x.
function lineOf(place, label, x, rows, text) {
  const style = styleOf(place), columns = x.map((_, i) => rows.map((row) => row[i]).filter(known));
  const mean = columns.map((own) => (own.length ? own.reduce((a, b) => a + b, 0) / own.length : null));
  const marks = x.length <= FEW_MARKERS;
  const line = {
    x, y: mean, name: asText(label), legendgroup: String(place), type: "scatter", mode: marks ? "lines+markers" : "lines",
    line: {color: style.colour, dash: style.dash, width: 2}, marker: {symbol: style.marker, size: 7, color: style.colour},
    hovertemplate: `${text}<extra>%{fullData.name}</extra>`, connectgaps: false,
  };
  if (rows.length < 2 || view.shown.size > MANY_BANDS) return [line];
  const kept = x.map((_, i) => i).filter((i) => columns[i].length);
  const edge = (pick) => kept.map((i) => pick(...columns[i]));
  const band = {
    x: [...kept.map((i) => x[i]), ...kept.map((i) => x[i]).reverse()], y: [...edge(Math.max), ...edge(Math.min).reverse()],
    type: "scatter", mode: "lines", fill: "toself", fillcolor: faint(style.colour, 0.15), line: {width: 0},
    hoverinfo: "skip", showlegend: false, legendgroup: String(place),
  };
  return [band, line];
}
