// Charts drawn at the width of the page, so that text stays readable on a phone. Each has a name, a
// readout under the pointer, and a table of its numbers.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 250, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 42;

export function show(value) {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function canvas(width, height, name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (name) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", name);
  } else {
    svg.setAttribute("aria-hidden", "true");
  }
  return svg;
}

function linearTicks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  const slack = 1e-3 * (high - low) / step;  // the clipping norm has headroom for rounding, and its end is a tick
  for (let n = Math.ceil(low / step - slack); n <= high / step + slack; n++) ticks.push(n * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function logTicks(low, high, wanted) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), ticks = [];
  const leading = last - first <= 1 ? [1, 2, 5] : last - first <= 2 ? [1, 3] : [1];
  const every = Math.ceil((last - first) / wanted);
  for (let power = first; power <= last; power += every)
    for (const digit of leading) ticks.push(Number((digit * 10 ** power).toPrecision(3)));
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function axis(values, log, from, to, wanted) {
  const known = values.filter((value) => value !== null && (!log || value > 0));
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) [low, high] = log ? [1, 10] : [0, 1];
  if (log) {
    if (high / low < 1.2) [low, high] = [low / 1.5, high * 1.5];
  } else if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)) || high === low) {
    const pad = Math.abs(high) * 0.1 || 1;
    [low, high] = [low - pad, high + pad];
  }
  const place = log ? Math.log : (value) => value;
  const scale = (value) => from + ((place(value) - place(low)) / (place(high) - place(low))) * (to - from);
  return { scale, ticks: log ? logTicks(low, high, wanted) : linearTicks(low, high, wanted) };
}

const padded = (values) => {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known), pad = 0.06 * (high - low);
  return [...values, low - pad, high + pad];
};

function drawAxes(svg, width, height, x, y, labels) {
  for (const tick of y.ticks) {
    const at = y.scale(tick);
    drawn(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
    drawn(svg, "text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, show(tick));
  }
  for (const tick of x.ticks) {
    const at = x.scale(tick);
    drawn(svg, "line", { class: "grid", x1: at, x2: at, y1: height - BOTTOM, y2: height - BOTTOM + 4 });
    drawn(svg, "text", { x: at, y: height - BOTTOM + 18, "text-anchor": "middle" }, show(tick));
  }
  const middle = (LEFT + width - RIGHT) / 2;
  drawn(svg, "text", { x: middle, y: height - 6, "text-anchor": "middle", class: "name" }, labels.x);
}

// A table of all numbers in a chart.
export function numbers(columns, rows) {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, table);
  return element("details", {}, element("summary", {}, "The numbers behind the picture"), scroll);
}

function readout(figure) {
  const box = element("div", { class: "readout", hidden: "" });
  figure.append(box);
  return {
    at(x, y, lines) {
      box.hidden = false;
      box.replaceChildren(...lines.map((line) => element("div", {}, line)));
      const free = figure.clientWidth - box.offsetWidth;
      box.style.left = `${Math.max(0, Math.min(free, x + 12))}px`;
      box.style.top = `${Math.max(0, y - box.offsetHeight - 8)}px`;
    },
    away() { box.hidden = true; },
  };
}

function legend(lines) {
  return element("ul", { class: "legend" }, ...lines.map((line) => {
    const key = canvas(26, 8, null);
    drawn(key, "line", { class: `curve c${line.color}`, x1: 0, x2: 26, y1: 4, y2: 4, "stroke-dasharray": line.dash || "" });
    return element("li", {}, key, line.name);
  }));
}

// Several curves over the same inputs `x`; `mark` is a level with a name, and `here` an input.
export function lineChart(figure, { name, x, lines, labels, xLog = false, yLog = false, mark = null, here = null }) {
  const width = Math.max(280, figure.clientWidth), open = figure.querySelector("details")?.open;
  const svg = canvas(width, HEIGHT, name);
  const ys = lines.flatMap((line) => line.y).concat(mark ? [mark.y] : []);
  const across = axis(x, xLog, LEFT, width - RIGHT, width < 500 ? 4 : 7);
  const up = axis(yLog ? ys : padded(ys), yLog, HEIGHT - BOTTOM, TOP, 5);
  drawAxes(svg, width, HEIGHT, across, up, labels);
  for (const line of lines) {
    const points = x.flatMap((at, n) => {
      const value = line.y[n];
      return value === null || (yLog && value <= 0) ? [] : [`${across.scale(at)},${up.scale(value)}`];
    });
    const looks = { class: `curve c${line.color}`, points: points.join(" "), "stroke-dasharray": line.dash || "" };
    drawn(svg, "polyline", looks);
    if (points.length === 1) {
      const [cx, cy] = points[0].split(",");
      drawn(svg, "circle", { class: `dot c${line.color}`, cx, cy, r: 4 });
    }
  }
  if (here !== null) {
    const at = across.scale(here);
    drawn(svg, "line", { class: "mark here", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM });
  }
  if (mark) {
    const at = up.scale(mark.y);
    drawn(svg, "line", { class: "mark", x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
    drawn(svg, "text", { x: LEFT + 6, y: at + 15, class: "name" }, mark.name);
  }
  const rows = x.map((at, n) => [show(at), ...lines.map((line) => show(line.y[n]))]);
  const table = numbers([labels.x, ...lines.map((line) => line.name)], rows);
  table.open = Boolean(open);
  figure.replaceChildren(svg, ...(lines.length > 1 ? [legend(lines)] : []), table);
  const hand = drawn(svg, "line", { class: "hand", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const said = readout(figure);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const away = x.map((value) => Math.abs(across.scale(value) - at));
    const n = away.indexOf(Math.min(...away)), place = across.scale(x[n]);
    for (const end of ["x1", "x2"]) hand.setAttribute(end, place);
    hand.setAttribute("visibility", "visible");
    const known = lines.filter((line) => line.y[n] !== null);
    const words = known.map((line) => `${line.name}: ${show(line.y[n])}`);
    said.at(event.clientX - box.left, event.clientY - box.top, [`${labels.x} ${show(x[n])}`, ...words]);
  });
  svg.addEventListener("pointerleave", () => { said.away(); hand.setAttribute("visibility", "hidden"); });
}

// Inputs across, letters upward, probability as opacity; below, the positions of the letters.
export function heatMap(figure, { name, inputs, table, end }) {
  const width = Math.max(280, figure.clientWidth), open = figure.querySelector("details")?.open;
  const { letters, matrix } = table, count = letters.length;
  const cell = Math.max(5, Math.min(44, 340 / count)), bottom = TOP + cell * count, height = bottom + BOTTOM;
  const svg = canvas(width, height, name);
  const step = (width - LEFT - RIGHT) / inputs.length;
  const largest = Math.max(...matrix.flat());
  drawn(svg, "rect", { class: "frame", x: LEFT, y: TOP, width: step * inputs.length, height: cell * count });
  matrix.forEach((row, i) => row.forEach((probability, j) => {
    if (probability / largest < 0.004) return;
    drawn(svg, "rect", {
      class: "cell", x: LEFT + i * step, y: bottom - (j + 1) * cell, width: step + 0.4, height: cell + 0.4,
      "fill-opacity": (probability / largest).toFixed(3),
    });
  }));
  const every = Math.ceil(16 / cell);
  letters.forEach((letter, j) => {
    if (j % every) return;
    drawn(svg, "text", { x: LEFT - 6, y: bottom - (j + 0.5) * cell + 4, "text-anchor": "end" }, show(letter));
  });
  const across = axis(inputs, false, LEFT + step / 2, width - RIGHT - step / 2, width < 500 ? 4 : 8);
  for (const tick of across.ticks)
    drawn(svg, "text", { x: across.scale(tick), y: bottom + 18, "text-anchor": "middle" }, show(tick));
  const middle = (LEFT + width - RIGHT) / 2;
  drawn(svg, "text", { x: middle, y: height - 6, "text-anchor": "middle", class: "name" }, "coordinate x (across); decoded letter (up)");
  const columns = ["x", ...letters.map((letter) => show(letter))];
  const behind = numbers(columns, inputs.map((x, i) => [show(x), ...matrix[i].map((value) => value.toFixed(4))]));
  behind.open = Boolean(open);
  figure.replaceChildren(svg, alphabet(width, table, end), behind);
  const said = readout(figure);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), zoom = width / box.width;
    const i = Math.floor(((event.clientX - box.left) * zoom - LEFT) / step);
    const j = Math.floor((bottom - (event.clientY - box.top) * zoom) / cell);
    if (!matrix[i] || matrix[i][j] === undefined) { said.away(); return; }
    const words = [`x = ${show(inputs[i])}, decoded as ${show(letters[j])}`, `probability ${show(matrix[i][j])}`];
    said.at(event.clientX - box.left, event.clientY - box.top, words);
  });
  svg.addEventListener("pointerleave", () => said.away());
}

function alphabet(width, { letters, lowest, highest }, end) {
  const svg = canvas(width, 74, `The alphabet: ${letters.length} letters drawn, from ${show(lowest)} to ${show(highest)}`);
  const across = axis([...letters, -end, end], false, LEFT, width - RIGHT, width < 500 ? 4 : 8);
  drawn(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: 28, y2: 28 });
  drawn(svg, "line", { class: "span", x1: across.scale(-end), x2: across.scale(end), y1: 28, y2: 28 });
  for (const letter of letters) {
    const at = across.scale(letter);
    drawn(svg, "line", { class: "bar", x1: at, x2: at, y1: 14, y2: 42 });
  }
  for (const tick of across.ticks) drawn(svg, "text", { x: across.scale(tick), y: 56, "text-anchor": "middle" }, show(tick));
  const middle = (LEFT + width - RIGHT) / 2;
  drawn(svg, "text", { x: middle, y: 72, "text-anchor": "middle", class: "name" }, "letters (ticks) and the range of x (thick)");
  return svg;
}
