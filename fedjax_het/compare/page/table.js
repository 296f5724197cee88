function valueText(value) {
  if (value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function swatch(place) {
  const style = styleOf(place), space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
  for (const [name, value] of [["width", 38], ["height", 10], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
  const fields = {x1: 0, x2: 38, y1: 5, y2: 5, stroke: style.colour, "stroke-width": 3, "stroke-dasharray": STROKES[style.dash]};
  for (const [name, value] of Object.entries(fields)) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

// The columns of the table of groups: title, value to sort by, text, and whether it is text.
function columns() {
  const metric = metricOf(view.metric), baseline = DATA.groups[view.baseline];
  const other = bySeed(baseline, "mean");
  const over = (figure) => (group) => interval([...bySeed(group, figure).values()]);
  const figure = (title, of, sign) => ({
    title, key: (group) => of(group).mean, text: (group) => reading(of(group), metric, sign),
  });
  const difference = figure(`mean less ${baseline.label}`, (group) => (unlike(group, baseline).length ? interval([]) : paired(bySeed(group, "mean"), other)), true);
  const whole = difference.text;
  difference.text = (group) => (group === baseline ? "–" : whole(group));
  const mean = figure(withUnit(`${metric.label}: mean`, metric), over("mean")), settled = mean.text;
  mean.text = (group) => {
    const ends = (group.late[view.model] || {})[view.metric];
    return ends ? `${settled(group)} * ${ends.map((end) => number(end, metric)).join(" to ")}` : settled(group);
  };
  const simulated = DATA.groups.some((group) => "simulated_seconds" in group.budget) ? [["simulated_seconds", "simulated"]] : [];
  return [
    {title: "runs", key: (group) => group.label, text: (group) => group.label, words: true, swatch: true},
    {title: "seeds", key: (group) => group.counted.length, text: (group) => String(bySeed(group, "mean").size)},
    mean,
    figure("worst 10 %", over("worst10")),
    figure("spread", over("std")),
    difference,
    ...[["client_steps", "client steps"], ["bytes", "bytes"], ["seconds", "training"], ...simulated].map(([name, title]) => ({
      title, key: (group) => group.budget[name] ?? null, text: (group) => amount(name, group.budget[name]),
    })),
    {title: "state", key: (group) => group.state, text: (group) => group.state, words: true, long: true},
    ...DATA.fields.map((name) => ({
      title: name, key: (group) => group.fields[name] ?? null, text: (group) => valueText(group.fields[name]), words: true,
    })),
  ];
}

function compareKeys(a, b) {
  const [empty, other] = [a, b].map((key) => key === null || key === undefined);
  if (empty || other) return empty - other;
  return typeof a === "number" && typeof b === "number" ? a - b : valueText(a).localeCompare(valueText(b), "en", {numeric: true});
}

function sorted(rows, key) {
  const empty = (row) => key(row) === null || key(row) === undefined;
  const order = rows.slice().sort((a, b) => (view.falling && !empty(a) && !empty(b) ? -1 : 1) * compareKeys(key(a), key(b)));
  return order;
}

function drawTable() {
  const all = columns(), head = element("tr");
  head.append(element("th", "show"), element("th", "base"));
  for (const column of all) {
    const cell = element("th", null, {className: column.words ? "text" : "", scope: "col"});
    const button = element("button", column.title);
    const now = view.sort === column.title;
    cell.setAttribute("aria-sort", now ? (view.falling ? "descending" : "ascending") : "none");
    button.onclick = () => {
      view.falling = now ? !view.falling : false;
      view.sort = column.title;
      drawTable();
    };
    cell.append(button);
    head.append(cell);
  }
  const by = all.find((column) => column.title === view.sort);
  const rows = (by ? sorted(DATA.groups, by.key) : DATA.groups).map((group) => rowOf(group, all));
  const table = $("groups"), top = element("thead"), body = element("tbody");
  top.append(head);
  body.append(...rows);
  table.replaceChildren(top, body);
  drawApart();
  drawLate();
}

function drawLate() {
  const moving = DATA.groups.some((group) => (group.late[view.model] || {})[view.metric]);
  $("late").textContent = moving ? DATA.late : "";
}

function drawApart() {
  const baseline = DATA.groups[view.baseline];
  const apart = DATA.groups.map((group) => [group.label, unlike(group, baseline)]).filter(([, fields]) => fields.length);
  const those = apart.map(([label, fields]) => `${label} (another ${fields.join(", ")})`).join("; ");
  $("apart").textContent = those && `No difference from ${baseline.label}, whose clients’ data are others: ${those}.`;
}

function rowOf(group, all) {
  const place = DATA.groups.indexOf(group), row = element("tr");
  const classes = [place === view.baseline ? "baseline" : "", view.shown.has(place) ? "" : "hidden"];
  row.className = classes.join(" ").trim();
  const show = element("input", null, {type: "checkbox", checked: view.shown.has(place), ariaLabel: `show ${group.label}`});
  show.onchange = () => {
    if (show.checked) view.shown.add(place); else view.shown.delete(place);
    drawAll();
  };
  const base = element("input", null, {
    type: "radio", name: "baseline", checked: place === view.baseline, ariaLabel: `compare with ${group.label}`,
  });
  base.onchange = () => {
    view.baseline = place;
    if (view.sort && view.sort.startsWith("mean less ")) view.sort = `mean less ${group.label}`;
    drawTable();
  };
  for (const input of [show, base]) {
    const cell = element("td");
    cell.append(input);
    row.append(cell);
  }
  for (const column of all) {
    const cell = element("td", column.text(group), {className: column.swatch ? "text name" : column.long ? "long" : column.words ? "text" : ""});
    if (column.swatch) cell.prepend(swatch(place));
    row.append(cell);
  }
  return row;
}

// A row a client: its value in each line, a mean over the seeds; only for clients that have names.
function drawNamed() {
  const name = `${view.model}/${view.metric}`, metric = metricOf(view.metric), groups = shownGroups();
  const valuesOf = ([, group]) => countedRuns(group).map((run) => run.named_clients[name]).filter(Boolean);
  const clients = [...new Set(groups.flatMap(valuesOf).flatMap((own) => Object.keys(own)))];
  const mean = (group, client) => interval(valuesOf(group).map((own) => own[client]).filter(known)).mean;
  const key = (client) => (groups.length ? mean(groups[0], client) : null) ?? Infinity;
  const head = element("tr"), top = element("thead"), body = element("tbody");
  head.append(element("th", "client", {className: "text"}), ...groups.map(([, group]) => element("th", group.label)));
  top.append(head);
  body.append(...clients.sort((a, b) => key(a) - key(b)).map((client) => {
    const row = element("tr");
    row.append(element("td", client, {className: "text"}), ...groups.map((group) => element("td", number(mean(group, client), metric))));
    return row;
  }));
  $("by_name").hidden = !clients.length;
  $("named").replaceChildren(top, body);
}

function drawRuns() {
  const metric = metricOf(view.metric), head = element("tr"), body = element("tbody"), top = element("thead");
  const titles = ["run", "of", "seed", withUnit(`${metric.label}: mean`, metric), ...FIGURES.slice(1).map((name) => SPELLED[name]), "state", "folder"];
  head.append(...titles.map((title, i) => element("th", title, {className: i < 2 || i > 8 ? "text" : ""})));
  for (const run of DATA.runs) {
    const row = element("tr");
    row.append(element("td", run.name, {className: "text"}), element("td", DATA.groups[run.group].label, {className: "text"}));
    row.append(element("td", run.seed));
    for (const name of FIGURES) row.append(element("td", number(figureOf(run, view.model, view.metric, name), metric, name)));
    row.append(element("td", run.diverged || run.state, {className: "long"}), element("td", run.folder, {className: "text"}));
    body.append(row);
  }
  top.append(head);
  $("runs").replaceChildren(top, body);
}
