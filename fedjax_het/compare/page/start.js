const redraws = [
  pair("mixture", having("mixture"), showMixture),
  pair("partition", DATA.partitions.map((part) => ({part, label: part.runs.length > 1 ? `${part.runs[0]} and ${part.runs.length - 1} more` : part.runs[0]})), showPartition),
  pair("simplex", simplexChoices(), showSimplex),
  pair("landscape", having("landscape"), showLandscape),
];
const drawSamples = samplesCards();

function drawAll() {
  drawTable();
  drawRuns();
  drawCurves();
  drawClients();
  drawNamed();
  drawLambda();
  drawSamples();
}

function start() {
  const models = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.metrics)))];
  const metrics = [...new Set(DATA.runs.flatMap((run) => Object.values(run.metrics).flatMap((own) => Object.keys(own))))];
  options($("model"), models.map((name) => [name, spelled(name)]), view.model);
  options($("metric"), metrics.map((name) => [name, withUnit(metricOf(name).title, metricOf(name))]), view.metric);
  options($("curve"), curveNames(), view.curve);
  const over = Object.entries(DATA.axes).filter(([name]) => DATA.runs.some((run) => run.axes[name]));
  options($("over"), over, view.over);
  for (const name of ["model", "metric", "curve", "over"]) {
    $(name).onchange = () => {
      view[name] = $(name).value;
      if (view.sort && view.sort.endsWith(": mean")) view.sort = null;
      drawAll();
    };
  }
  $("all").onclick = () => { view.shown = new Set(DATA.groups.keys()); drawAll(); };
  $("none").onclick = () => { view.shown = new Set(); drawAll(); };
  const runs = DATA.runs.length, groups = DATA.groups.length;
  $("about").textContent = runs === groups ? `${runs} run${runs > 1 ? "s" : ""}` : `${runs} runs, of which those that differ in the seed alone are one line: ${groups} lines`;
  $("left_out").textContent = (DATA.left_out || []).map((text) => `${text}.`).join(" ");
  $("groups_note").textContent = "Over the clients, each figure a mean over the seeds; ± is a 95 % interval over the seeds (Student's t). Differences are paired: of the seeds that both have, against the line that is chosen under “base”. Spread is the standard deviation over the clients.";
  $("budgets").textContent = DATA.budgets.join(" ");
  $("conditions").textContent = DATA.conditions.join(" ");
  drawAll();
  for (const redraw of redraws) redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawAll();
    for (const redraw of redraws) redraw();
  });
  document.body.dataset.ready = "yes";
}

start();
