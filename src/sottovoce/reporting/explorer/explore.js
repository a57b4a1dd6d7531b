// The page: asks when a control changes, draws the answer, and shows errors.

import { element, heatMap, lineChart, show } from "/charts.js";
import { Controls, PRESETS } from "/controls.js";

const WAIT = 200, SLOW = 1500;
const byId = (id) => document.getElementById(id);
const page = crypto.randomUUID();
let number = 0, waiting = null, asked = null, slowly = null, last = {};

async function ask(path, question, signal, mine) {
  const body = JSON.stringify({ page, number: mine, question });
  const reply = await fetch(path, { method: "POST", body, signal });
  const found = await reply.json();
  if (reply.status === 409) throw new DOMException(found.error, "AbortError");
  if (!reply.ok) throw new Error(found.error);
  return found;
}

function changed(controls) {
  clearTimeout(waiting);
  busy(true);
  waiting = setTimeout(() => compute(controls), WAIT);
}

function busy(is, words = "Computing…") {
  byId("results").setAttribute("aria-busy", String(is));
  byId("status").classList.toggle("working", is);
  byId("status").textContent = is ? words : "";
}

async function compute(controls) {
  const question = controls.question(), mine = ++number;
  asked?.abort();
  clearTimeout(slowly);
  if (question === null) {
    failed("Every box needs a number.");
    return;
  }
  const { signal } = (asked = new AbortController());
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(question))}`);
  slowly = setTimeout(() => busy(true, "Still computing: a new design takes seconds, many releases up to a minute…"), SLOW);
  try {
    const answer = await ask("/api/answer", question, signal, mine);
    last = { question, answer, curve: null };
    byId("problem").hidden = true;
    byId("results").classList.remove("stale");
    draw();
    busy(true, "Computing epsilon over the rounds…");
    const curve = await ask("/api/curve", question, signal, mine);
    last.curve = curve;
    drawCurve();
    clearTimeout(slowly);
    busy(false);
    byId("status").textContent = `Computed: ${question.mechanism} spends epsilon ${answer.spent.shown} of ${show(question.epsilon)}.`;
  } catch (error) {
    if (error.name === "AbortError") return;
    clearTimeout(slowly);
    failed(error instanceof TypeError ? "The explorer does not answer; is 'sottovoce explore' still running?" : error.message);
  }
}

function failed(words) {
  busy(false);
  byId("problem").textContent = words;
  byId("problem").hidden = false;
  byId("results").classList.add("stale");
}

const count = (bytes) => bytes < 1e4 ? `${bytes} bytes` : bytes < 1e6 ? `${show(bytes / 1e3)} kB` : `${show(bytes / 1e6)} MB`;

function card(name, figure, detail) {
  return element("div", {}, element("dt", {}, name), element("dd", { class: "figure" }, figure), element("dd", { class: "detail" }, detail));
}

function draw() {
  const { question, answer } = last, { spent, gaussian, law } = answer;
  const calibrated = answer.calibrated, bits = answer.bits_per_coordinate;
  const others = Object.entries(answer.parameters).filter(([name]) => name !== calibrated);
  const assumes = spent.assumes ? `; assuming that ${spent.assumes}` : "";
  byId("cards").replaceChildren(
    card("epsilon spent", spent.shown, `at delta ${show(spent.delta)}, ${spent.adjacency}, by the ${spent.accountant} accountant${assumes}`),
    card("error, against a Gaussian", `${show(gaussian.times_the_error)} ×`, `mean square ${show(answer.mse)} a coordinate; the Gaussian has ${show(gaussian.variance)}`),
    card("a message", count(answer.bytes_per_message), `${show(bits)} ${bits === 1 ? "bit" : "bits"} a coordinate and ${answer.header_bytes} bytes of header; ${show(gaussian.times_fewer_bytes)} times smaller than float32`),
    card(`calibrated ${calibrated.replaceAll("_", " ")}`, show(answer.parameters[calibrated]), others.map(([name, value]) => `${name} = ${typeof value === "number" ? show(value) : value}`).join(", ") || `over ${question.rounds} ${question.rounds === 1 ? "round" : "rounds"}`),
  );
  drawMatrix(question, answer);
  const spike = law.coordinatewise ? "" : " (all other coordinates 0)";
  const bias = withoutRounding(law);
  byId("bias-note").textContent = bias.some((value) => value !== 0)
    ? "The mean of the decoded coordinate minus the coordinate x."
    : "None: the mean of the decoded coordinate is x, for every x.";
  lineChart(byId("bias"), {
    name: `Bias of ${question.mechanism} by coordinate${spike}`, x: law.inputs, labels: { x: `coordinate x${spike}` },
    lines: [{ name: "bias", y: bias, color: 1 }],
  });
  lineChart(byId("variance"), {
    name: `Variance of ${question.mechanism} by coordinate${spike}, and the Gaussian's`, x: law.inputs, labels: { x: `coordinate x${spike}` },
    lines: [
      { name: question.mechanism, y: law.variance, color: 1 },
      { name: "gaussian, same budget", y: law.inputs.map(() => gaussian.variance), color: 2, dash: "6 4" },
    ],
  });
  drawRecipe(answer.recipe);
}

// A bias that comes only from rounding in float64 is drawn as 0.
function withoutRounding({ inputs, bias, variance }) {
  const size = Math.abs(inputs[0]) + Math.sqrt(Math.max(...variance));
  return Math.max(...bias.map(Math.abs)) < 1e-9 * size ? bias.map(() => 0) : bias;
}

function drawMatrix(question, { law, typical_coordinate }) {
  const table = law.table, note = byId("matrix-note"), figure = byId("matrix");
  if (table === null) {
    note.textContent = law.coordinatewise
      ? "A coordinate is sent as a float32 number: there is no finite alphabet, and no table."
      : "A code describes the whole update, not one coordinate: there is no table of a coordinate.";
    figure.replaceChildren();
    return;
  }
  const together = table.letters_together > 1 ? `, ${table.letters_together} adjacent ones drawn as one` : "";
  const left = table.drawn_letters < table.all_letters ? `; ${table.drawn_letters} of them are drawn, the others have negligible probability` : "";
  const small = question.dimension > 1 && question.clip_geometry !== "linf" ? ` A typical coordinate of a full update is ${show(typical_coordinate)}.` : "";
  note.textContent = `The probability that a coordinate x is decoded as each of ${table.all_letters} letters${together}${left}.${small}`;
  heatMap(figure, {
    name: `Matrix of ${question.mechanism}: probability of each of ${table.letters.length} letters, by coordinate`,
    inputs: law.inputs, table, end: law.inputs.at(-1),
  });
}

function drawCurve() {
  const { question, curve } = last;
  const names = Object.keys(curve.bounds), now = curve.rounds.indexOf(question.rounds);
  lineChart(byId("epsilon-curve"), {
    name: `Epsilon of ${question.mechanism} over the rounds, by accountant`,
    x: curve.rounds, xLog: curve.rounds.at(-1) >= 20, labels: { x: "rounds" },
    lines: names.map((name, n) => ({ name, y: curve.bounds[name], color: n + 1, dash: ["", "6 4", "2 3", "8 3 2 3"][n % 4] })),
    here: question.rounds, mark: { y: curve.budget, name: `budget ${show(curve.budget)}` },
  });
  byId("epsilon-note").textContent = `Every accountant's bound; the smallest is reported: ${curve.shown[now]} after ${question.rounds} ${question.rounds === 1 ? "round" : "rounds"}, by the ${curve.accountant[now]} accountant.`;
}

function drawRecipe(recipe) {
  const blocks = [
    ["A run's spec (TOML)", recipe.spec, "spec", ""],
    ["Rank every mechanism at this budget", recipe.plan, "plan", "command"],
    ["The same calibration, to the last digit", recipe.calibrate, "calibrate", "command"],
    ["In Python", recipe.python, "python", ""],
  ].filter(([, text]) => text !== null);
  const missing = recipe.no_spec ? [element("p", { class: "soft" }, recipe.no_spec)] : [];
  byId("recipe").replaceChildren(...missing, ...blocks.map(([name, text, id, kind]) => {
    const button = element("button", { type: "button", "aria-label": `Copy: ${name}` }, "Copy");
    const pre = element("pre", { id: `recipe-${id}`, class: kind, tabindex: "0", role: "region", "aria-label": name }, text);
    button.addEventListener("click", () => copy(pre, button));
    return element("div", { class: "take" }, element("div", {}, element("h3", {}, name), button), pre);
  }));
}

async function copy(pre, button) {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(pre);
    button.textContent = "Selected: press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function fromAddress() {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null;
  }
}

let redrawn = null;
addEventListener("resize", () => {
  clearTimeout(redrawn);
  redrawn = setTimeout(() => {
    if (last.answer) draw();
    if (last.curve) drawCurve();
  }, 150);
});

const { mechanisms } = await (await fetch("/api/mechanisms")).json();
const controls = new Controls(mechanisms, () => changed(controls));
controls.set({ adjacency: "zero-out", ...PRESETS[0], ...fromAddress() });
