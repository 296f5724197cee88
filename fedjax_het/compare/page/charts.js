const legend = (groups) => ({showlegend: groups.length > 1 && groups.length <= MANY_LINES});

// What the selector of curves offers: figures of the metric above, and everything else that is in metrics.jsonl.
function curveNames() {
  const names = new Set(DATA.runs.flatMap((run) => Object.keys(run.curves)));
  const others = [...names].filter((name) => name !== "round" && !name.startsWith("metrics/"));
  return [...FIGURES.map((name) => [name, `the metric above: ${SPELLED[name]}`]), ...others.map((name) => [name, name.replaceAll("_", " ")])];
}

function drawCurves() {
  const groups = shownGroups(), own = FIGURES.includes(view.curve), metric = metricOf(view.metric);
  const name = own ? `metrics/${view.model}/${view.metric}/${view.curve}` : view.curve;
  const scaled = own && view.curve !== "gini";
  const unit = own ? withUnit(`${metric.title}, ${SPELLED[view.curve]}`, scaled ? metric : {}) : name.replaceAll("_", " ");
  const factor = scaled ? metric.factor : 1, traces = [];
  for (const [place, group] of groups) {
    const runs = countedRuns(group).filter((run) => run.curves[name]);
    if (!runs.length) continue;
    const maps = runs.map((run) => new Map(run.curves.round.map((round, i) => [round, run.curves[name][i]])));
    const places = runs.map((run) => new Map(run.curves.round.map((round, i) => [round, (run.axes[view.over] || [])[i]])));
    const rounds = [...maps[0].keys()].filter((round) => maps.every((map, i) => known(map.get(round)) && known(places[i].get(round))));
    const rows = maps.map((map) => rounds.map((round) => factor * map.get(round)));
    const x = rounds.map((round) => places.reduce((sum, own) => sum + own.get(round), 0) / places.length);
    if (rounds.length) traces.push(...lineOf(place, group.label, x, rows, `${view.over.replaceAll("_", " ")} %{x}: %{y:.4g}`));
  }
  draw("curves", traces, layout(view.over === "round" ? "round" : DATA.axes[view.over], unit, legend(groups)));
}

// A sorted curve at some shares of the clients, by its neighbours.
function at(values, shares) {
  return shares.map((share) => {
    const place = Math.min(Math.max((share / 100) * values.length - 0.5, 0), values.length - 1), low = Math.floor(place);
    const high = Math.min(low + 1, values.length - 1);
    return values[low] + (place - low) * (values[high] - values[low]);
  });
}

function drawClients() {
  const groups = shownGroups(), name = `${view.model}/${view.metric}`, metric = metricOf(view.metric), traces = [];
  for (const [place, group] of groups) {
    const curves = countedRuns(group).map((run) => run.clients[name]).filter(Boolean);
    if (!curves.length) continue;
    const most = Math.max(...curves.map((curve) => curve.values.length));
    const shares = Array.from({length: most}, (_, i) => (100 * (i + 0.5)) / most);
    const rows = curves.map((curve) => at(curve.values, shares).map((y) => metric.factor * y));
    const counts = [...new Set(curves.map((curve) => curve.count))].join(", ");
    const lines = lineOf(place, group.label, shares, rows, `%{x:.0f} % of ${counts} clients: %{y:.4g}`);
    if (most > HANDFUL) traces.push(...lines);
    else traces.push({...lines.at(-1), mode: "markers"});  // nothing joins a handful of clients
  }
  $("clients_section").hidden = !DATA.runs.some((run) => Object.keys(run.clients).length);
  if ($("clients_section").hidden) return;
  const look = layout("share of the clients, worst first (%)", withUnit(metric.title, metric), legend(groups));
  look.xaxis.range = [0, 100];
  draw("clients", traces, look);
}

function drawLambda() {
  const having = DATA.runs.filter((run) => run.lambda), groups = shownGroups(), traces = [];
  $("lambda_section").hidden = !having.length;
  if (!having.length) return;
  const metric = having[0].lambda.metric, {factor} = metricOf(metric);
  for (const [place, group] of groups) {
    const runs = countedRuns(group).filter((run) => run.lambda && run.lambda.metric === metric);
    if (!runs.length) continue;
    const grid = runs[0].lambda.grid, alike = runs.filter((run) => run.lambda.grid.length === grid.length);
    const rows = alike.map((run) => run.lambda.mean.map((y) => (known(y) ? factor * y : null)));
    traces.push(...lineOf(place, group.label, grid, rows, "λ = %{x}: %{y:.4g}"));
  }
  draw("lambda", traces, layout("λ", withUnit(metricOf(metric).title, metricOf(metric)), {showlegend: traces.length > 1 && groups.length <= MANY_LINES}));
}
