// What a chart shows, in words and as a table, for those who do not see it or want the numbers.

const MOST_ROWS = 300;

// Every mark that the reader could point at, with what Vega says of it: "micro-batches: 8; bubble: 0.22".
function described(view) {
  const found = [];
  const walk = (group) => group.items.forEach((mark) => {
    if (mark.marktype === "group") mark.items.forEach(walk);
    else if (mark.role === "mark") found.push(...mark.items.filter((item) => item.description));
  });
  view.scenegraph().root.items.forEach(walk);
  return found.map((item) => item.description);
}

// The lines that a chart writes about itself: marks that have words and no place among the values.
function lines(descriptions) {
  return [...new Set(descriptions)].filter((text) => text.startsWith("text: "))
    .flatMap((text) => text.slice("text: ".length).split("\n")).filter((line) => line.trim());
}

// Vega writes a number in full; six digits are as many as the data has.
function short(value) {
  const [, sign, number, unit] = value.match(/^(\u2212?)(\d*\.\d+)(%?)$/) ?? [];
  return number === undefined ? value : `${sign}${Number(Number(number).toPrecision(6))}${unit}`;
}

// One row for each different description, grouped by what its columns are. What has only a place is decoration.
function tables(descriptions) {
  const groups = new Map();
  for (const text of new Set(descriptions)) {
    if (text.startsWith("text: ")) continue;
    const cells = text.split(/; (?=[^;]*: )/).map((part) => {
      const colon = part.indexOf(": ");
      return colon < 0 ? ["", part] : [part.slice(0, colon), part.slice(colon + 2)];
    });
    if (cells.every(([name]) => ["x", "y", "x2", "y2"].includes(name))) continue;
    const columns = JSON.stringify(cells.map(([name]) => name));
    if (!groups.has(columns)) groups.set(columns, []);
    groups.get(columns).push(cells.map(([, value]) => short(value)));
  }
  return [...groups].map(([columns, rows]) => ({ columns: JSON.parse(columns), rows }));
}

function cell(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (kind === "th") made.scope = "col";
  return made;
}

function tableElement({ columns, rows }) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  columns.forEach((name) => head.append(cell("th", name || "value")));
  const body = table.createTBody();
  for (const row of rows.slice(0, MOST_ROWS)) {
    const line = body.insertRow();
    row.forEach((value) => line.append(cell("td", value)));
  }
  if (rows.length > MOST_ROWS) {
    table.createCaption().textContent = `The first ${MOST_ROWS} of ${rows.length} rows.`;
  }
  return table;
}

// A folded table under the figure, written when it is opened and again when the chart changes while it is open.
function addTable(figure, chart) {
  const details = document.createElement("details");
  details.className = "explorer-data";
  details.append(cell("summary", "Data behind the picture"));
  const box = document.createElement("div");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Data behind the picture");
  details.append(box);
  const write = () => {
    if (!details.open) return;
    const found = described(chart.view);
    box.replaceChildren(...lines(found).map((line) => cell("p", line)), ...tables(found).map(tableElement));
  };
  details.addEventListener("toggle", write);
  figure.querySelector("figcaption").after(details);
  return write;
}

// Says, when a control has come to rest, where it stands and what the chart then says.
function addVoice(figure, chart) {
  const status = document.createElement("p");
  status.className = "explorer-spoken";
  status.setAttribute("role", "status");
  figure.append(status);
  let timer = null;
  return (input) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const label = input.labels[0].textContent.trim();
      const value = input.type === "checkbox" ? (input.checked ? "on" : "off")
        : input.tagName === "SELECT" ? input.selectedOptions[0].textContent
        : input.parentElement.querySelector("output").textContent;
      const says = lines(described(chart.view)).join("; ");
      status.textContent = `${label}: ${value}. ${says ? `The chart says: ${says}` : "The chart has changed."}`;
    }, 500);
  };
}

