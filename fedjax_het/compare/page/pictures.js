// Two panes side by side, each with a selector of what it shows; draw(option, place, both options).
function pair(id, choices, show) {
  $(`${id}_section`).hidden = !choices.length;
  const panes = choices.slice(0, 2).map((_, side) => {
    const pane = element("div", null, {className: "pane"}), select = element("select"), place = element("div");
    options(select, choices.map((choice, i) => [String(i), choice.label]), String(side));
    select.ariaLabel = id;
    pane.append(select, place);
    return {pane, select, place};
  });
  const redraw = () => {
    const chosen = panes.map(({select}) => choices[Number(select.value)]);
    panes.forEach(({place}, side) => show(chosen[side], place, chosen));
  };
  for (const {select} of panes) select.onchange = redraw;
  $(id).replaceChildren(...panes.map(({pane}) => pane));
  return redraw;
}

// The pane's plot, made where it is missing; `extra` goes below it.
function plotIn(place, traces, look, extra) {
  let plot = place.querySelector(".plot");
  if (!plot) {
    plot = element("div", null, {className: "plot"});
    place.prepend(plot);
  }
  plot.hidden = !traces;
  if (traces) draw(plot, traces, look);
  place.querySelector(".below")?.remove();
  if (extra) {
    const below = element("div", null, {className: "below"});
    below.append(element("img", null, {src: extra, alt: "picture that the run has drawn"}));
    place.append(below);
  }
}

const runLabel = (run) => (DATA.runs.length === DATA.groups.length ? DATA.groups[run.group].label : `${DATA.groups[run.group].label}, seed ${run.seed}`);
const having = (part) => DATA.runs.filter((run) => run[part]).map((run) => ({label: runLabel(run), run}));

function showMixture({run}, place) {
  const {round, lines, each, even} = run.mixture, names = Object.keys(lines);
  const look = layout("round", "coefficient");
  look.shapes = [{type: "line", xref: "paper", x0: 0, x1: 1, y0: even, y1: even, line: {dash: "dot", color: "#8C8C8C", width: 1}}];
  if (each) {
    plotIn(place, names.flatMap((name, i) => lineOf(i, name, round, [lines[name]], "round %{x}: %{y:.4g}")), look);
    return;
  }
  const band = (low, high, alpha) => ({
    x: [...round, ...round.slice().reverse()], y: [...lines[high], ...lines[low].slice().reverse()], type: "scatter", mode: "lines",
    fill: "toself", fillcolor: faint(COLOURS[0], alpha), line: {width: 0}, name: `${low} to ${high} of the cohort`, hoverinfo: "skip",
  });
  const median = lineOf(0, "median of the cohort", round, [lines["50 %"]], "round %{x}: %{y:.4g}");
  plotIn(place, [band("0 %", "100 %", 0.12), band("10 %", "90 %", 0.25), ...median], look);
}

function showPartition({part}, place) {
  if (part.picture) return plotIn(place, null, null, part.picture);
  const counts = part.counts, classes = counts[0].length, clients = [...counts.keys()];
  const sizes = counts.map((row) => row.reduce((a, b) => a + b, 0));
  if (classes === 1) {
    const look = layout("clients, in order of their size", "rows");
    return plotIn(place, [{type: "bar", y: sizes.slice().sort((a, b) => b - a), marker: {color: COLOURS[0]}}], look);
  }
  const few = clients.length <= 40, top = counts.map((row) => row.indexOf(Math.max(...row)));
  const order = few ? clients : clients.sort((a, b) => top[a] - top[b] || counts[b][top[b]] / sizes[b] - counts[a][top[a]] / sizes[a]);
  const cell = (client, c) => (few ? counts[client][c] : counts[client][c] / Math.max(sizes[client], 1));
  const named = (names, i) => (names ? asText(names[i]) : i);
  const z = Array.from({length: classes}, (_, c) => order.map((client) => cell(client, c)));
  const name = few ? "rows" : "share", plain = classes <= 20 && counts.length <= 25;
  const trace = {
    type: "heatmap", z, colorscale: [[0, "#f2f6fb"], [1, "#003f6b"]], zmin: 0, colorbar: {title: {text: name}, thickness: 12, outlinewidth: 0},
    customdata: z.map((_, c) => order.map((i) => [named(part.names, i), named(part.classes, c)])), hovertemplate: `client %{customdata[0]}, class %{customdata[1]}: %{z:.3g}<extra></extra>`, xgap: few ? 1 : 0, ygap: 1,
    ...(few && plain ? {text: z.map((row) => row.map((n) => n || "")), texttemplate: "%{text}", textfont: {size: 10}} : {}),
  };
  const look = layout(few ? "client" : "clients, in order of the class they hold most of", "class");
  if (classes <= 20) look.yaxis.dtick = 1;
  if (classes <= 20 && part.classes) Object.assign(look.yaxis, {tickvals: [...part.classes.keys()], ticktext: part.classes.map(asText)});
  if (few && part.names) Object.assign(look.xaxis, {tickvals: order, ticktext: part.names.map(asText)});
  plotIn(place, [trace], look);
}

function showSimplex({run, of}, place) {
  const extra = of === "" ? run.pictures.simplex : null, found = run.simplex;
  if (!found || found.alphas[0].length > 3) return plotIn(place, null, null, extra);
  const metric = metricOf(found.metric), values = (of === "" ? found.all : found.clusters[of]).map((v) => (known(v) ? metric.factor * v : null));
  const title = withUnit(metric.label, metric);
  if (found.alphas[0].length === 2) {
    const order = [...found.alphas.keys()].sort((i, j) => found.alphas[i][1] - found.alphas[j][1]);
    const x = order.map((i) => found.alphas[i][1]), rows = [order.map((i) => values[i])];
    return plotIn(place, lineOf(0, runLabel(run), x, rows, "α₂ = %{x}: %{y:.4g}"), layout("α₂ = 1 - α₁", title), extra);
  }
  const look = layout("", ""), corner = (text) => ({title: {text}, gridcolor: look.xaxis.gridcolor, linecolor: look.xaxis.linecolor});
  look.ternary = {sum: 1, bgcolor: "rgba(0,0,0,0)", aaxis: corner("θ₁"), baxis: corner("θ₂"), caxis: corner("θ₃")};
  look.margin.t = 36;
  const [a, b, c] = [0, 1, 2].map((m) => found.alphas.map((alpha) => alpha[m]));
  const trace = {
    type: "scatterternary", a, b, c, mode: "markers", cliponaxis: false, text: values.map((v) => (known(v) ? v.toFixed(2) : "–")),
    marker: {symbol: "hexagon", size: 26, color: values, colorscale: "Viridis", colorbar: {title: {text: asText(title)}, thickness: 12}},
    hovertemplate: "α = (%{a:.2f}, %{b:.2f}, %{c:.2f}): %{text}<extra></extra>",
  };
  plotIn(place, [trace], look, extra);
}

function simplexChoices() {
  return DATA.runs.filter((run) => run.simplex || run.pictures.simplex).flatMap((run) => {
    const parts = run.simplex ? ["", ...Object.keys(run.simplex.clusters)] : [""];
    return parts.map((of) => ({run, of, label: `${runLabel(run)} · ${of === "" ? "all clients" : `cluster ${of}`}`}));
  });
}

// Both panes share a scale, logarithmic where the losses span much.
function showLandscape({run}, place, both) {
  const every = both.flatMap((own) => own.run.landscape.losses.flat()).filter(known);
  const low = Math.min(...every), high = Math.max(...every), log = low > 0 && high > 30 * low;
  const scale = (loss) => (known(loss) ? (log ? Math.log10(loss) : loss) : null), {line, losses} = run.landscape;
  const look = layout("δ", "η"), title = {text: log ? "log₁₀ loss" : "loss"};
  Object.assign(look.yaxis, {scaleanchor: "x", constrain: "domain"});
  look.xaxis.constrain = "domain";
  look.showlegend = false;
  const surface = {
    type: "contour", x: line, y: line, z: losses[0].map((_, j) => losses.map((row) => scale(row[j]))), colorscale: "Viridis",
    contours: {start: scale(low), end: scale(high), size: (scale(high) - scale(low)) / 16 || 1}, zmin: scale(low), zmax: scale(high),
    customdata: losses[0].map((_, j) => losses.map((row) => row[j])), colorbar: {title, thickness: 12},
    hovertemplate: "(%{x:.2f}, %{y:.2f}): loss %{customdata:.4g}<extra></extra>",
  };
  const middle = {x: [0], y: [0], type: "scatter", mode: "markers", marker: {symbol: "x", size: 11, color: "#fff", line: {color: "#000", width: 1}}, hoverinfo: "skip"};
  const [x, y] = [0, 1].map((axis) => (run.landscape.models || []).slice(1).map((own) => own[axis]));
  const others = {...middle, x, y, marker: {...middle.marker, symbol: "circle"}};
  plotIn(place, [surface, others, middle], look);
}

function samplesCards() {
  const runs = DATA.runs.filter((run) => run.samples.length);
  $("samples_section").hidden = !runs.length;
  if (!runs.length) return () => {};
  const rounds = [...new Set(runs.flatMap((run) => run.samples.map((own) => own.round)))].sort((a, b) => a - b);
  const slider = $("round"), cards = runs.map((run) => {
    const card = element("figure"), image = element("img", null, {alt: `synthetic examples of ${run.name}`}), text = element("figcaption");
    card.append(image, text);
    return {run, card, image, text};
  });
  slider.max = rounds.length - 1;
  slider.value = slider.max;
  const show = () => {
    const round = rounds[Number(slider.value)];
    $("round_shown").textContent = round;
    for (const {run, card, image, text} of cards) {
      const frame = run.samples.filter((own) => own.round <= round).at(-1) || run.samples[0];
      card.hidden = !view.shown.has(run.group);
      image.src = frame.picture;
      text.textContent = `${DATA.groups[run.group].label}: round ${frame.round}`;
    }
  };
  slider.oninput = show;
  $("samples").replaceChildren(...cards.map(({card}) => card));
  return show;
}
